package admin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// changeTimeout bounds a change of the list, which is on one master of a cluster.
	changeTimeout = 3 * time.Second
	// passTimeout bounds the wait for all partitions of a server that answers, however slowly: a master of a cluster
	// of three gives 22 answers, so each may take 0.2 s. schedule.HoldAnswer bounds the wait for one that does not.
	passTimeout = 5 * time.Second
	// silentFor is for how long a resume does not ask a server again that did not answer, so that the others go on.
	silentFor = time.Second
	// awayPatience is how long servers have not answered at least, so that they were asked twice, when Resume gives them up because
	// nothing else is left. With the tries themselves that is some 5 s at most.
	awayPatience = 2 * time.Second
	// copyAgain is how soon a list is brought again to a server that has not got it.
	copyAgain = 3 * time.Second
)

// ErrAway says that masters of a cluster do not answer, so that what they have was not released. The timerds do that once they answer.
var ErrAway = errors.New("the timerds release them once these masters answer")

// copyTo brings a list to nodes, to all at once, each within a time of its own. It returns what has not got it, and calls failed for
// each server that has not.
func copyTo(ctx context.Context, nodes []*schedule.Node, list *schedule.HoldList, within time.Duration, failed func(*schedule.Node, error)) (missing []string) {
	var mu sync.Mutex
	var slots []keys.Partition
	as := *list
	err := schedule.AskNodes(ctx, nodes, within, func(ctx context.Context, node *schedule.Node) error {
		own := as
		moving, err := own.CopyTo(ctx, node)
		mu.Lock()
		defer mu.Unlock()
		list.Learn(&own)
		slots = append(slots, moving...)
		if err != nil {
			failed(node, err)
		}
		return err
	})
	if away, some := errors.AsType[*schedule.AwayError](err); some {
		for _, server := range away.Masters {
			missing = append(missing, server.Error())
		}
	}
	for _, p := range slots {
		missing = append(missing, fmt.Sprintf("slot %d, which is moving", p.Slot()))
	}
	return missing
}

// isSilent tells whether an error of a server is that it does not answer.
func isSilent(err error) bool {
	_, is := errors.AsType[net.Error](err)
	return is
}

// servers are those of a schedule as a resume sees them: one that did not answer is not asked again for a while.
type servers struct {
	*Holds
	silent map[*schedule.Node]time.Time // when a server did not answer
	away   time.Time                    // since when not all have answered; zero if they have
}

// noteSilent notes that a server did not answer.
func (s *servers) noteSilent(node *schedule.Node) {
	s.silent[node] = time.Now()
	if s.away.IsZero() {
		s.away = s.silent[node]
	}
}

// bring brings a list to all servers but those that did not answer lately. It returns what has not got it.
func (s *servers) bring(ctx context.Context, list *schedule.HoldList) (missing []string) {
	nodes, err := s.Nodes(ctx)
	if _, away := errors.AsType[*schedule.AwayError](err); err != nil && !away {
		return []string{err.Error()}
	}
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(node *schedule.Node) bool {
		silent := time.Since(s.silent[node]) < silentFor
		if silent {
			missing = append(missing, node.Name()+" does not answer")
		}
		return silent
	})
	return append(missing, copyTo(ctx, nodes, list, passTimeout, func(node *schedule.Node, err error) { s.passOver(ctx, node, err) })...)
}

// look looks for what is held on all nodes at once. Those that do not answer are named, and are not asked again for a while.
func (s *servers) look(ctx context.Context, nodes []*schedule.Node, cutoff schedule.Millis, of keys.Namespace) (parts map[*schedule.Node][]schedule.HeldPart, away []string, err error) {
	parts = map[*schedule.Node][]schedule.HeldPart{}
	var asked []*schedule.Node
	for _, node := range nodes {
		if time.Since(s.silent[node]) < silentFor {
			away = append(away, node.Name())
		} else {
			asked = append(asked, node)
		}
	}
	var mu sync.Mutex
	err = schedule.AskNodes(ctx, asked, passTimeout, func(ctx context.Context, node *schedule.Node) error {
		found, err := node.LookHeld(ctx, cutoff, of)
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			parts[node] = found
		} else if node.Name() != "" && isSilent(err) {
			away = append(away, node.Name())
			s.noteSilent(node)
			return nil
		}
		return err
	})
	if err == nil && len(away) == 0 {
		s.away = time.Time{}
	}
	slices.Sort(away)
	return parts, away, err
}

// passOver notes that a node failed in the middle of a resume, if it is one of several, so that the others go on. It tells whether
// that is so.
func (s *servers) passOver(ctx context.Context, node *schedule.Node, err error) bool {
	if err == nil || ctx.Err() != nil || node.Name() == "" {
		return false
	}
	if isSilent(err) {
		s.noteSilent(node)
	}
	return true
}

// isStuck tells whether of all resumes nothing is left but what servers have that do not answer.
func (r *releaser) isStuck(l *schedule.HoldList) bool {
	for _, h := range l.Holds {
		if h.Resume != nil && len(r.stuck[h.Namespace]) == 0 {
			return false
		}
	}
	return len(r.stuck) > 0
}

// stuckError returns an error for a resume of which nothing else is left, which names the servers.
func (r *releaser) stuckError(of keys.Namespace) error {
	return fmt.Errorf("%d timers of %s are released, but those of %s are not: %w", r.sum, of, strings.Join(r.stuck[of], ", "), ErrAway)
}

// forget forgets nodes that were silent and are none any more.
func (s *servers) forget(nodes []*schedule.Node) {
	maps.DeleteFunc(s.silent, func(node *schedule.Node, _ time.Time) bool { return !slices.Contains(nodes, node) })
}
