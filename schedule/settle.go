package schedule

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/redis/go-redis/v9"
)

// Settle forgets firings that NATS has acknowledged, whoever holds their claim by now, and arms in the same step what follows those
// of timers that repeat. It is safe to repeat; after an
// error it may have happened or not. An error that concerns only some of them is a *PartError.
func (s *Schedule) Settle(ctx context.Context, firings []Firing) error {
	single, repeating := firings, []Firing(nil)
	if slices.ContainsFunc(firings, isRepeating) {
		single, repeating = split(firings)
	}
	failed := s.onEach(ctx, s.step("settle"), single, batch{perCall, math.MaxInt}, func(i int) []any { return []any{single[i].Ref} }, isDone)
	if len(repeating) > 0 {
		failed.add(s.settleRepeating(ctx, repeating))
	}
	if err := failed.of(len(firings)); err != nil {
		return fmt.Errorf("schedule: settle %d firings: %w", len(firings), err)
	}
	return nil
}

// Release gives claims back, so that anybody may claim them: at once, or after the pause of each. Whoever does learns which of
// them may be stored. Those that NATS refused are listed as set aside until they are settled. Claims that somebody else has
// taken meanwhile stay theirs. It is safe to repeat. Errors are as those of Settle.
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
