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

// Settle forgets firings with the outcomes fired and unfired, even if another timerd has claimed them since. For
// timers that repeat, the same step sets the next occurrence. It is safe to repeat; after an error it may or may not
// have happened. An error for only some of the firings is a *PartError.
func (s *Schedule) Settle(ctx context.Context, outcomes []Outcome) error {
	single, repeating := outcomes, []Outcome(nil)
	if slices.ContainsFunc(outcomes, isRepeating) {
		single, repeating = split(outcomes)
	}
	var failed PartError
	if s.cluster {
		single, failed = s.settleTogether(ctx, single)
	}
	for kind, some := range byKind(single) {
		failed.add(s.onEach(ctx, s.step("settle"), some, batch{perCall, math.MaxInt, []any{kind}},
			func(i int) []any { return []any{some[i].Ref} }, isDone))
	}
	if len(repeating) > 0 {
		failed.add(s.settleRepeating(ctx, repeating))
	}
	if err := failed.of(len(outcomes)); err != nil {
		return fmt.Errorf("schedule: settle %d firings: %w", len(outcomes), err)
	}
	return nil
}

// settleTogether settles firings of a cluster, many partitions with each call. It returns the firings that a server
// refused, unchanged, because their slots are moving.
func (s *Schedule) settleTogether(ctx context.Context, outcomes []Outcome) (refused []Outcome, failed PartError) {
	var mu sync.Mutex
	var settling sync.WaitGroup
	for server, own := range s.byServer(ctx, outcomes) {
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

// byServer sorts outcomes by the server of their partitions; a server that is not known is nil.
func (s *Schedule) byServer(ctx context.Context, outcomes []Outcome) map[*redis.Client][]Outcome {
	all := map[*redis.Client][]Outcome{}
	for _, o := range outcomes {
		server, err := s.topology.server(ctx, o.Partition())
		if err != nil {
			server = nil
		}
		all[server] = append(all[server], o)
	}
	return all
}

// settleOn settles firings on a server in one call, and returns the refused ones.
func (s *Schedule) settleOn(ctx context.Context, server *redis.Client, outcomes []Outcome) (refused []Outcome,
	err error) {
	if server == nil {
		return outcomes, nil
	}
	type part struct {
		partition keys.Partition
		kind      AccountKind
	}
	var places []part
	parts := map[part][]Outcome{}
	for _, o := range outcomes {
		p := part{o.Partition(), o.accountKind()}
		if parts[p] == nil {
			places = append(places, p)
		}
		parts[p] = append(parts[p], o)
	}
	args := make([]any, 0, 3*len(places)+len(outcomes))
	for _, p := range places {
		args = append(args, p.partition.Prefix(), string(p.kind), len(parts[p]))
		for _, o := range parts[p] {
			args = append(args, o.Ref)
		}
	}
	away, err := s.step("settle").Run(ctx, server, nil, args...).Int64Slice()
	for _, place := range away {
		refused = append(refused, parts[places[place-1]]...)
	}
	return refused, err
}

// byKind sorts outcomes by their kinds of the account: one, nearly always.
func byKind(outcomes []Outcome) map[string][]Outcome {
	all := map[string][]Outcome{}
	for i := range outcomes {
		kind := string(outcomes[i].accountKind())
		all[kind] = append(all[kind], outcomes[i])
	}
	return all
}

// Release gives claims back, so that any timerd may claim them, at once or after the Pause of each. The next claim
// learns which events may be stored. Claims that another timerd has taken meanwhile are left alone. It is safe to
// repeat. Its errors are Settle's.
func (s *Schedule) Release(ctx context.Context, outcomes []Outcome) error {
	failed := s.onEach(ctx, s.step("release"), outcomes, batch{perCall, math.MaxInt, nil}, func(i int) []any {
		o := &outcomes[i]
		return []any{o.Ref, int64(o.firing.leaseEnd()), o.Pause.Milliseconds(), o.MayBeStored, listed(o.Kind),
			o.firing.freed}
	}, isDone)
	if err := failed.of(len(outcomes)); err != nil {
		return fmt.Errorf("schedule: release %d firings: %w", len(outcomes), err)
	}
	return nil
}

// listed returns release's number for the reason why a firing is parked; 0 if it is not.
func listed(kind OutcomeKind) int {
	if kind == OutcomeUnread {
		return 2
	}
	if kind == OutcomeRefused {
		return 1
	}
	return 0
}

// perCall bounds the firings that one call settles or gives back: Lua cannot pass thousands to one command, and Redis
// does nothing else meanwhile.
const perCall = 256

// isDone reads a reply without content.
func isDone(reply *redis.Cmd, _ []int) error { return reply.Err() }

func isRepeating(o Outcome) bool { return o.repeats() }

// split separates the outcomes of timers that repeat.
func split(outcomes []Outcome) (single, repeating []Outcome) {
	for _, o := range outcomes {
		if o.repeats() {
			repeating = append(repeating, o)
		} else {
			single = append(single, o)
		}
	}
	return single, repeating
}
