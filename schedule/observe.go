package schedule

import (
	"context"
	"fmt"
	"time"

	"github.com/timerd-io/timerd/keys"
)

// maxHeld bounds Hint.Held: tombstones are not kept for much longer.
const maxHeld = 50 * time.Second

// MovingError says that hints were not taken in because their slots are moving
// from one server of a cluster to another. The others were.
type MovingError struct {
	Hints []Hint // in their order
	Err   error  // what a server said about one of them
}

func (e *MovingError) Error() string {
	return fmt.Sprintf("schedule: observe: the slots of %d keys are moving: %v", len(e.Hints), e.Err)
}

// Unwrap returns what the server said.
func (e *MovingError) Unwrap() error { return e.Err }

// Observe takes hints in, those of a partition in their order, up to MaxHints in one
// atomic step. It is
// safe to repeat after an error. The keys must be timer keys. since is the unix
// ms from when on the caller has heard every event: it decides where a key lives
// on though it was due. heard is the unix ms at which the first of the hints
// happened at the earliest: an expired event proves nothing about a timer that the
// schedule does not know if it is so old that others may have fired and forgotten
// that. Both are by the server's clock. A *MovingError has the hints that are to be
// taken in later.
func (s *Schedule) Observe(ctx context.Context, hints []Hint, since, heard int64) (Observed, error) {
	return s.observe(ctx, hints, func(keys.Partition) int64 { return since }, heard)
}

// observe is Observe with a since for each partition.
func (s *Schedule) observe(ctx context.Context, hints []Hint, since func(keys.Partition) int64, heard int64) (seen Observed, err error) {
	var late MovingError
	groups := s.group(hints)
	for len(groups) > 0 {
		calls := make([]call, len(groups))
		for i, g := range groups {
			calls[i] = call{g.partition, g.args(since(g.partition), heard)}
		}
		var left []hintGroup
		for i, cmd := range s.run(ctx, s.scripts.observe, calls) {
			g := groups[i]
			reply, failed := cmd.Int64Slice()
			switch {
			case IsMoving(failed):
				late.Hints, late.Err = append(late.Hints, g.hints...), failed
				continue
			case failed != nil:
				err = fmt.Errorf("schedule: observe %d keys: %w", len(g.hints), failed)
				continue
			case len(reply) != 6:
				err = fmt.Errorf("schedule: observe: unexpected reply of %d elements", len(reply))
				continue
			}
			seen.Add(Observed{Owed: int(reply[1]), Adopted: int(reply[2]), Rescheduled: int(reply[3]), Cancelled: int(reply[4])})
			head := Head{g.partition, reply[0]}
			if reply[1] > 0 {
				head.Due = 0
			}
			if g.hints = g.hints[reply[5]:]; len(g.hints) > 0 {
				left = append(left, g)
			}
			seen.Heads = append(seen.Heads, head)
		}
		groups = left
	}
	if err == nil && len(late.Hints) > 0 {
		err = &late
	}
	return seen, err
}

// hintGroup is hints of one partition.
type hintGroup struct {
	partition keys.Partition
	hints     []Hint
}

// group sorts hints by partition.
func (s *Schedule) group(hints []Hint) []hintGroup {
	var groups []hintGroup
	if s.cluster == nil {
		if len(hints) > 0 {
			groups = append(groups, hintGroup{keys.Single, hints})
		}
		return groups
	}
	at := map[keys.Partition]int{}
	for _, h := range hints {
		p := keys.PartitionOf(h.Key)
		n, ok := at[p]
		if !ok {
			n = len(groups)
			at[p] = n
			groups = append(groups, hintGroup{partition: p})
		}
		groups[n].hints = append(groups[n].hints, h)
	}
	return groups
}

// args returns the arguments of the script for the first of the hints.
func (g hintGroup) args(since, heard int64) []any {
	n := min(len(g.hints), MaxHints)
	args := append(make([]any, 0, 2*n+3), since, heard, nil)
	var held time.Duration
	for _, h := range g.hints[:n] {
		args = append(args, h.code(), h.Key)
		held = max(held, h.Held)
	}
	args[2] = min(held, maxHeld).Milliseconds()
	return args
}
