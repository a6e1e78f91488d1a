package schedule

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// Settle forgets firings that NATS has acknowledged, whoever holds their claim by now, and arms in the same step what follows those
// of timers that repeat. It is safe to repeat; after an
// error it may have happened or not. An error that concerns only some of them is a *PartError.
func (s *Schedule) Settle(ctx context.Context, firings []Firing) error {
	single, repeating := firings, []Firing(nil)
	if slices.ContainsFunc(firings, isRepeating) {
		single, repeating = split(firings)
	}
	err := s.onEach(ctx, s.scripts.Load().settle, single, func(f *Firing) []any { return []any{f.Ref} })
	if len(repeating) > 0 {
		err = joinPartErrors(single, err, repeating, s.settleRepeating(ctx, repeating))
	}
	if err != nil {
		return fmt.Errorf("schedule: settle %d firings: %w", len(firings), err)
	}
	return nil
}

// Release gives claims back, so that anybody may claim them: at once, or after the pause of each. Whoever does learns which of
// them may be stored. Those that NATS refused are listed as set aside until they are settled. Claims that somebody else has
// taken meanwhile stay theirs. It is safe to repeat. Errors are as those of Settle.
func (s *Schedule) Release(ctx context.Context, firings []Firing) error {
	err := s.onEach(ctx, s.scripts.Load().release, firings, func(f *Firing) []any {
		return []any{f.Ref, int64(f.leaseEnd()), f.Pause.Milliseconds(), f.MayBeStored, f.Refused, f.freed}
	})
	if err != nil {
		return fmt.Errorf("schedule: release %d firings: %w", len(firings), err)
	}
	return nil
}

// PartError says that a step failed for some of the firings that it was about.
type PartError struct {
	Left []Firing // those that it failed for
	Err  error    // why it failed for one of them
}

func (e *PartError) Error() string { return fmt.Sprintf("%d of them failed: %v", len(e.Left), e.Err) }

// Unwrap returns why the step failed.
func (e *PartError) Unwrap() error { return e.Err }

// perCall is how many firings one call settles or gives back at most: Lua cannot pass thousands to one command, and Redis does
// nothing else meanwhile.
const perCall = 256

// onEach runs a script on each partition of the firings, with what args returns for each firing; where there are many, in
// several calls.
func (s *Schedule) onEach(ctx context.Context, script *redis.Script, firings []Firing, args func(*Firing) []any) error {
	var calls []Call
	var members [][]Firing
	at := map[keys.Partition]int{}
	for i := range firings {
		f := &firings[i]
		n, ok := at[f.Partition]
		if !ok || len(members[n]) == perCall {
			n = len(calls)
			at[f.Partition] = n
			calls, members = append(calls, Call{Partition: f.Partition}), append(members, nil)
		}
		calls[n].Args, members[n] = append(calls[n].Args, args(f)...), append(members[n], *f)
	}
	var failed PartError
	for i, reply := range s.Run(ctx, script, calls) {
		if err := reply.Err(); err != nil {
			failed.Left, failed.Err = append(failed.Left, members[i]...), err
		}
	}
	switch {
	case failed.Err == nil:
		return nil
	case len(failed.Left) == len(firings):
		return failed.Err
	}
	return &failed
}

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

// joinPartErrors returns the error of a step on firings that was taken in two parts, each with its error or nil.
func joinPartErrors(a []Firing, errA error, b []Firing, errB error) error {
	var failed PartError
	for _, part := range []struct {
		firings []Firing
		err     error
	}{{a, errA}, {b, errB}} {
		var some *PartError
		switch {
		case part.err == nil:
			continue
		case errors.As(part.err, &some):
			failed.Left = append(failed.Left, some.Left...)
		default:
			failed.Left = append(failed.Left, part.firings...)
		}
		failed.Err = part.err
	}
	switch {
	case failed.Err == nil:
		return nil
	case len(failed.Left) == len(a)+len(b):
		return failed.Err
	}
	return &failed
}
