package schedule

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// Settle forgets firings that NATS has acknowledged, even if another timerd has claimed them since. For timers that
// repeat, the same step sets the next occurrence. It is safe to repeat; after an error it may or may not have happened.
// An error for only some of the firings is a *PartError.
func (s *Schedule) Settle(ctx context.Context, firings []Firing) error {
	single, repeating := firings, []Firing(nil)
	if slices.ContainsFunc(firings, isRepeating) {
		single, repeating = split(firings)
	}
	var failed PartError
	if s.cluster {
		single, failed = s.settleTogether(ctx, single)
	}
	failed.add(s.onEach(ctx, s.step("settle"), single, batch{perCall, math.MaxInt}, func(i int) []any { return []any{single[i].Ref} }, isDone))
	if len(repeating) > 0 {
		failed.add(s.settleRepeating(ctx, repeating))
	}
	if err := failed.of(len(firings)); err != nil {
		return fmt.Errorf("schedule: settle %d firings: %w", len(firings), err)
	}
	return nil
}

// settleTogether settles firings of a cluster, those of many partitions with each call. It returns those that a server refused, as
// their slots are moving, and nothing has happened to them.
func (s *Schedule) settleTogether(ctx context.Context, firings []Firing) (refused []Firing, failed PartError) {
	var mu sync.Mutex
	var settling sync.WaitGroup
	for server, own := range s.byServer(ctx, firings) {
		settling.Go(func() {
			for some := range slices.Chunk(own, perCall) {
				left, err := s.settleOn(ctx, server, some)
				mu.Lock()
				refused = append(refused, left...)
				if err != nil {
					failed.add(PartError{some, err})
				}
				mu.Unlock()
			}
		})
	}
	settling.Wait()
	return refused, failed
}

// byServer sorts firings by the server that has their partitions, as far as is known; those of which nothing is known are of no server.
func (s *Schedule) byServer(ctx context.Context, firings []Firing) map[*redis.Client][]Firing {
	all := map[*redis.Client][]Firing{}
	for _, f := range firings {
		server, err := s.topology.server(ctx, f.Partition)
		if err != nil {
			server = nil
		}
		all[server] = append(all[server], f)
	}
	return all
}

// settleOn settles firings on a server in one call, and returns those that it refused.
func (s *Schedule) settleOn(ctx context.Context, server *redis.Client, firings []Firing) (refused []Firing, err error) {
	if server == nil {
		return firings, nil
	}
	var partitions []keys.Partition
	parts := map[keys.Partition][]Firing{}
	for _, f := range firings {
		if parts[f.Partition] == nil {
			partitions = append(partitions, f.Partition)
		}
		parts[f.Partition] = append(parts[f.Partition], f)
	}
	args := make([]any, 0, 2*len(partitions)+len(firings))
	for _, p := range partitions {
		args = append(args, p.Prefix(), len(parts[p]))
		for _, f := range parts[p] {
			args = append(args, f.Ref)
		}
	}
	away, err := s.step("settle").Run(ctx, server, nil, args...).Int64Slice()
	for _, place := range away {
		refused = append(refused, parts[partitions[place-1]]...)
	}
	return refused, err
}

// Release gives claims back, so that any timerd may claim them, at once or after the Pause of each. The next claim
// learns which of them may be stored. Those that NATS refused are listed as parked until they are settled. Claims that
// another timerd has taken meanwhile are left alone. It is safe to repeat. Its errors are as those of Settle.
func (s *Schedule) Release(ctx context.Context, firings []Firing) error {
	failed := s.onEach(ctx, s.step("release"), firings, batch{perCall, math.MaxInt}, func(i int) []any {
		f := &firings[i]
		return []any{f.Ref, int64(f.leaseEnd()), f.Pause.Milliseconds(), f.MayBeStored, f.Refused, f.freed}
	}, isDone)
	if err := failed.of(len(firings)); err != nil {
		return fmt.Errorf("schedule: release %d firings: %w", len(firings), err)
	}
	return nil
}

// perCall is how many firings one call settles or gives back at most: Lua cannot pass thousands to one command, and Redis does
// nothing else meanwhile.
const perCall = 256

// isDone reads a reply that says no more than that it was done.
func isDone(reply *redis.Cmd, _ []int) error { return reply.Err() }

func isRepeating(f Firing) bool { return f.Occurrence.Repeats() }

// split returns those of firings that settle alone, and those of timers that repeat.
func split(firings []Firing) (single, repeating []Firing) {
	for _, f := range firings {
		if isRepeating(f) {
			repeating = append(repeating, f)
		} else {
			single = append(single, f)
		}
	}
	return single, repeating
}
