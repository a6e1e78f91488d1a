package schedule

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// Away is a master of a cluster that does not answer, or does not as it should, and why.
type Away struct {
	Addr string
	Err  error
}

func (a Away) Error() string { return fmt.Sprintf("%s does not answer: %v", a.Addr, a.Err) }

// Unwrap returns why it does not answer.
func (a Away) Unwrap() error { return a.Err }

// AwayError says which servers could not be asked. What was to be done was done on all others.
type AwayError struct{ Masters []Away }

func (e *AwayError) Error() string {
	said := make([]string, len(e.Masters))
	for i, a := range e.Masters {
		said[i] = a.Error()
	}
	return strings.Join(said, "; ")
}

// Unwrap returns why each of them does not answer.
func (e *AwayError) Unwrap() []error {
	errs := make([]error, len(e.Masters))
	for i, a := range e.Masters {
		errs[i] = a
	}
	return errs
}

// of returns why a server does not answer, or nil if it is not among those. e may be nil.
func (e *AwayError) of(server *redis.Client) error {
	if e == nil {
		return nil
	}
	for _, a := range e.Masters {
		if a.Addr == server.Options().Addr {
			return a
		}
	}
	return nil
}

// askAll does something on all servers at the same time, on each within a time of its own. It returns an *AwayError with
// those on which that failed, in their order, or nil.
func askAll[S interface{ client() *redis.Client }](ctx context.Context, servers []S, within time.Duration, ask func(context.Context, S) error) error {
	errs := make([]error, len(servers))
	var asking sync.WaitGroup
	for i, s := range servers {
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, within)
			defer cancel()
			errs[i] = ask(ctx, s)
		})
	}
	asking.Wait()
	var away AwayError
	for i, err := range errs {
		if err != nil {
			away.Masters = append(away.Masters, Away{servers[i].client().Options().Addr, err})
		}
	}
	if len(away.Masters) == 0 {
		return nil
	}
	return &away
}

// AskNodes does something on all nodes at the same time, on each within a time of its own. It returns an *AwayError with those on
// which that failed, in their order, or nil.
func AskNodes(ctx context.Context, nodes []*Node, within time.Duration, ask func(context.Context, *Node) error) error {
	return askAll(ctx, nodes, within, ask)
}

// blame names the server of a cluster that does not answer in an error that a call to it had.
func (s *Schedule) blame(server *redis.Client, err error) error {
	if _, is := errors.AsType[net.Error](err); is && s.cluster {
		return Away{server.Options().Addr, err}
	}
	return err
}

// PassOver asks all masters of a cluster at once, waits for a time at most, and returns those that do not answer. From then on
// the schedule is without them: what it lists, counts and changes is that of the others, and what concerns one timer of theirs is
// an error at once, which wraps an Away. It is for a command, which asks once; call it before anything else. If none answers, it
// returns an error.
func (s *Schedule) PassOver(ctx context.Context, within time.Duration) ([]Away, error) {
	masters, err := s.topology.masters(ctx)
	if err != nil {
		return nil, fmt.Errorf("schedule: %w", err)
	}
	if !s.cluster {
		return nil, nil
	}
	err = askAll(ctx, masters, within, func(ctx context.Context, m master) error { return m.server.Ping(ctx).Err() })
	if err == nil {
		return nil, nil
	}
	away, _ := errors.AsType[*AwayError](err)
	if len(away.Masters) == len(masters) {
		return nil, fmt.Errorf("schedule: no master answers: %w", err)
	}
	s.topology = without{s.topology, away}
	return away.Masters, nil
}

// knownHolds returns the list of holds, or an empty one if the master that has it is passed over: then a timer that is held counts as
// owed until a claim has looked at it.
func (s *Schedule) knownHolds(ctx context.Context) (*HoldList, error) {
	list, err := s.Holds(ctx)
	_, away := errors.AsType[Away](err)
	if _, passes := s.topology.(without); !passes || !away {
		return list, err
	}
	now, err := s.Clock(ctx)
	return &HoldList{Now: MillisOf(now)}, err
}

// Clock returns what the clock of a server shows: of the first master that answers.
func (s *Schedule) Clock(ctx context.Context) (time.Time, error) {
	masters, err := s.topology.masters(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("schedule: read the clock of Redis: %w", err)
	}
	type reading struct {
		at  time.Time
		err error
	}
	said := make(chan reading, len(masters)) // so that nobody waits for a silent one
	for _, m := range masters {
		go func() {
			at, err := m.server.Time(ctx).Result()
			said <- reading{at, err}
		}()
	}
	var last reading
	for range masters {
		if last = <-said; last.err == nil {
			return last.at, nil
		}
	}
	return time.Time{}, fmt.Errorf("schedule: read the clock of Redis: %w", last.err)
}

// without is a topology without some masters.
type without struct {
	topology
	away *AwayError
}

func (w without) masters(ctx context.Context) ([]master, error) {
	all, err := w.topology.masters(ctx)
	return slices.DeleteFunc(all, func(m master) bool { return w.away.of(m.server) != nil }), err
}

func (w without) server(ctx context.Context, p keys.Partition) (*redis.Client, error) {
	server, err := w.topology.server(ctx, p)
	if err == nil {
		err = w.away.of(server)
	}
	return server, err
}
