package schedule

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// Away is a master of a cluster that does not answer, or answers with an error, and that error.
type Away struct {
	Addr string
	Err  error
}

func (a Away) Error() string {
	if _, answered := errors.AsType[redis.Error](a.Err); answered {
		return fmt.Sprintf("%s refuses: %v", a.Addr, a.Err)
	}
	return fmt.Sprintf("%s does not answer: %v", a.Addr, a.Err)
}

// Unwrap returns the failure to answer, or the answer if it is an error.
func (a Away) Unwrap() error { return a.Err }

// AwayError says which servers could not be asked. The call took effect on all others.
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

// of returns the failure of a server; nil if it is not among Masters. e may be nil.
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

// askAll calls ask for all servers at the same time, each with its own time limit. It returns an *AwayError with the
// failing ones in order, or nil.
func askAll[S interface{ client() *redis.Client }](ctx context.Context, servers []S, within time.Duration,
	ask func(context.Context, S) error) error {
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

// passing is a topology without the masters that are passed over.
type passing struct {
	topology
	over atomic.Pointer[AwayError] // nil: none
}

func (t *passing) masters(ctx context.Context) ([]Master, error) {
	all, err := t.topology.masters(ctx)
	over := t.over.Load()
	return slices.DeleteFunc(all, func(m Master) bool { return over.of(m.Server) != nil }), err
}

func (t *passing) server(ctx context.Context, p keys.Partition) (*redis.Client, error) {
	server, err := t.topology.server(ctx, p)
	if err == nil {
		err = t.over.Load().of(server)
	}
	return server, err
}

// PassOver asks all masters of a cluster at once, waits at most the given time, and returns the silent ones. Until it
// is called again the schedule lists, counts and changes only timers of the others, and a call for a timer of a silent
// one fails at once with an error that wraps an Away. Commands call it once, before anything else. If no master
// answers, none is passed over and it returns an error.
func (ix *Index) PassOver(ctx context.Context, within time.Duration) ([]Away, error) {
	t, ok := ix.topology.(*passing)
	if !ok {
		return nil, nil
	}
	masters, err := t.topology.masters(ctx)
	if err != nil {
		return nil, fmt.Errorf("schedule: %w", err)
	}
	err = askAll(ctx, masters, within, func(ctx context.Context, m Master) error {
		err := m.Server.Ping(ctx).Err()
		if redis.HasErrorPrefix(err, "MISCONF ") { // it refuses writes, and so PING; it can be read
			return nil
		}
		return err
	})
	away, _ := errors.AsType[*AwayError](err)
	if away != nil && len(away.Masters) == len(masters) {
		t.over.Store(nil)
		return nil, fmt.Errorf("schedule: no master answers: %w", err)
	}
	t.over.Store(away)
	return ix.PassedOver(), nil
}

// PassedOver returns the masters that the last PassOver has found away.
func (ix *Index) PassedOver() []Away {
	if t, ok := ix.topology.(*passing); ok && t.over.Load() != nil {
		return t.over.Load().Masters
	}
	return nil
}
