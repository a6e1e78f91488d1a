package schedule

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// PartError is the failure of a step for some of its firings.
type PartError struct {
	Left []Outcome // the firings without success
	Err  error     // of one of them
}

func (e *PartError) Error() string { return fmt.Sprintf("%d of them failed: %v", len(e.Left), e.Err) }

// Unwrap returns why the step failed.
func (e *PartError) Unwrap() error { return e.Err }

// add adds the failure of a part of the step.
func (e *PartError) add(other PartError) {
	if other.Err != nil {
		e.Left, e.Err = append(e.Left, other.Left...), other.Err
	}
}

// of returns the error of a step on a number of firings: nil if none failed, Err if all did, else e.
func (e *PartError) of(firings int) error {
	switch {
	case e.Err == nil:
		return nil
	case len(e.Left) == firings:
		return e.Err
	}
	return e
}

// batch bounds one call: its firings, and about the bytes of their payloads. head has the arguments before theirs.
type batch struct {
	firings, bytes int
	head           []any
}

// onEach runs a step on each partition of the outcomes, with the arguments that args returns for each by its index;
// many take several calls. read is called with each reply, and the indices of its outcomes.
func (ix *Index) onEach(ctx context.Context, step Script, outcomes []Outcome, most batch, args func(int) []any,
	read func(*redis.Cmd, []int) error) PartError {
	var calls []Call
	var members [][]int
	var bytes []int
	at := map[keys.Partition]int{}
	for i := range outcomes {
		p, size := outcomes[i].Partition(), outcomes[i].bytes
		n, ok := at[p]
		if !ok || len(members[n]) == most.firings || bytes[n]+size > most.bytes {
			n = len(calls)
			at[p] = n
			calls = append(calls, Call{Partition: p, Args: slices.Clone(most.head)})
			members, bytes = append(members, nil), append(bytes, 0)
		}
		calls[n].Args, members[n] = append(calls[n].Args, args(i)...), append(members[n], i)
		bytes[n] += size
	}
	var failed PartError
	for i, reply := range ix.Run(ctx, step, calls) {
		if err := read(reply, members[i]); err != nil {
			failed.Err = err
			for _, m := range members[i] {
				failed.Left = append(failed.Left, outcomes[m])
			}
		}
	}
	return failed
}
