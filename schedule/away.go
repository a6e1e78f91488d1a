package schedule

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// Away is a master of a cluster that does not answer, or answers with an error, and that error.
type Away struct {
	Addr string
	Err  error
}

func (a Away) Error() string { return fmt.Sprintf("%s does not answer: %v", a.Addr, a.Err) }

// Unwrap returns why it does not answer.
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

// without is a topology without some masters.
type without struct {
	topology
	away *AwayError
}

func (w without) masters(ctx context.Context) ([]Master, error) {
	all, err := w.topology.masters(ctx)
	return slices.DeleteFunc(all, func(m Master) bool { return w.away.of(m.Server) != nil }), err
}

func (w without) server(ctx context.Context, p keys.Partition) (*redis.Client, error) {
	server, err := w.topology.server(ctx, p)
	if err == nil {
		err = w.away.of(server)
	}
	return server, err
}
