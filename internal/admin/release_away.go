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
	// changeTimeout bounds a change of the list, which one master of a cluster keeps.
	changeTimeout = 3 * time.Second
	// passTimeout bounds the wait for all partitions of a server that answers, however slowly: a master of a cluster of
	// three gives 22 answers, so each may take 0.2 s. schedule.HoldAnswer bounds the wait for a server without an
	// answer.
	passTimeout = 5 * time.Second
	// silentFor is the pause before a resume asks a silent server again, so that the others go on.
	silentFor = time.Second
	// awayPatience is the time without an answer after which Resume gives up a server, if nothing else is left to
	// release. It allows two tries; with them Resume takes some 5 s at most.
	awayPatience = 2 * time.Second
	// copyAgain is the pause before copying the list again to a server without it.
	copyAgain = 3 * time.Second
)

// ErrAway means that masters of a cluster do not answer, so that their timers are not released. The timerds release
// them once the masters answer.
var ErrAway = errors.New("the timerds release them once these masters answer")

// copyTo copies a list to all nodes at once, each within its own time limit. It returns the servers without it, and
// calls failed for each.
func copyTo(ctx context.Context, nodes []*schedule.Node, list *schedule.HoldList, within time.Duration,
	failed func(*schedule.Node, error)) (missing []string) {
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

// isSilent reports whether an error means that the server does not answer.
func isSilent(err error) bool {
	_, is := errors.AsType[net.Error](err)
	return is
}

// servers are the servers of a schedule in a resume: a silent one is not asked again for a while.
type servers struct {
	*Holds
	silent map[*schedule.Node]time.Time // time of the missing answer
	away   time.Time                    // since when some server has been silent; zero if none is
}

// noteSilent notes that a server did not answer.
func (s *servers) noteSilent(node *schedule.Node) {
	s.silent[node] = time.Now()
	if s.away.IsZero() {
		s.away = s.silent[node]
	}
}

// bring copies a list to all servers except recently silent ones. It returns the servers without it.
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
	return append(missing, copyTo(ctx, nodes, list, passTimeout,
		func(node *schedule.Node, err error) { s.passOver(ctx, node, err) })...)
}

// look looks for timers on hold on all nodes at once. It returns the silent ones, which are not asked again for a
// while.
func (s *servers) look(ctx context.Context, nodes []*schedule.Node, cutoff schedule.Millis,
	of keys.Namespace) (parts map[*schedule.Node][]schedule.HeldPart, away []string, err error) {
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

// passOver notes that a node failed during a resume. It reports whether the resume can go on with other nodes.
func (s *servers) passOver(ctx context.Context, node *schedule.Node, err error) bool {
	if err == nil || ctx.Err() != nil || node.Name() == "" {
		return false
	}
	if isSilent(err) {
		s.noteSilent(node)
	}
	return true
}

// isStuck reports whether all resumes are done but for the timers of silent servers.
func (r *releaser) isStuck(l *schedule.HoldList) bool {
	for _, h := range l.Holds {
		if h.Resume != nil && len(r.stuck[h.Namespace]) == 0 {
			return false
		}
	}
	return len(r.stuck) > 0
}

// stuckError returns the error of a resume that waits for silent servers only, and names them.
func (r *releaser) stuckError(of keys.Namespace) error {
	return fmt.Errorf("%d timers of %s are released, but those of %s are not: %w", r.sum, of,
		strings.Join(r.stuck[of], ", "), ErrAway)
}

// forget forgets silent nodes that have left the cluster.
func (s *servers) forget(nodes []*schedule.Node) {
	maps.DeleteFunc(s.silent, func(node *schedule.Node, _ time.Time) bool { return !slices.Contains(nodes, node) })
}
