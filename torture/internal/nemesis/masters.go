package nemesis

import (
	"context"
	"fmt"
	"sync"

	"github.com/timerd-io/timerd/torture/internal/history"
	"github.com/timerd-io/timerd/torture/internal/servers"
)

// onMaster breaks one master of a cluster while timers repeat, and retries are requested, on each master. The fault
// concerns the slots that the master has at the beginning.
func onMaster(breaks func(r *servers.ClusterRedis, ctx context.Context, n int) ([]history.Slots, func() error,
	error)) injection {
	return func(ctx context.Context, s target, f Fault) (func() error, error) {
		r, err := s.cluster()
		if err != nil {
			return nil, err
		}
		s.crowds.Repeat(ctx)
		slots, heal, err := breaks(r, ctx, f.Pick)
		if err != nil {
			return nil, err
		}
		s.record.Slots = slots
		var retries sync.WaitGroup
		retries.Go(func() { s.crowds.Retry(ctx) })
		return func() error {
			err := heal()
			retries.Wait()
			return err
		}, nil
	}
}

// freezeMaster stops one master until its replica has taken over. The fault concerns all masters: while they consider
// this one failed and the replica has not taken over, the cluster refuses every key.
func freezeMaster(ctx context.Context, s target, f Fault) (func() error, error) {
	r, err := s.cluster()
	if err != nil {
		return nil, err
	}
	return r.Freeze(ctx, f.Pick)
}

// cluster returns the Redis of a shape with several masters.
func (t target) cluster() (*servers.ClusterRedis, error) {
	r, ok := t.Redis.(*servers.ClusterRedis)
	if !ok {
		return nil, fmt.Errorf("nemesis: the shape %s has only one master, and no slots", t.Shape)
	}
	return r, nil
}
