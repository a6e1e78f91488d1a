package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/timerd-io/timerd/keys"
)

// StoredID is the id of a message in a stream: of an event, or of a dead letter that took its place.
type StoredID struct {
	Key     keys.Key
	Due     Millis
	Attempt int
	// Repeat and Occurrence are those of the message, if its outcome was StoredUnclear; else they may be left out.
	Repeat     string
	Occurrence int64
}

// StoredOutcome is the fate of the timer with a StoredID.
type StoredOutcome int

// The outcomes of EndStored.
const (
	StoredNone     StoredOutcome = iota // no timer has the id
	StoredEnded                         // its timer has left the schedule, or its next occurrence is armed
	StoredDoubtful                      // no timer has the id, but the key has another one
	// StoredUnclear says that the key repeats and has an earlier occurrence, which is over if the message is of the
	// same repetition: it was left out, or moved. EndStored ends it if the id has Repeat and Occurrence.
	StoredUnclear
)

// Stored is how EndStored ends timers.
type Stored struct {
	Kind  OutcomeKind   // OutcomeFired for events, OutcomeDead for dead letters without an event
	Lease time.Duration // of the claims of repeating timers
	// Known is the last due time that the schedule can know of. If a message is due later, another timer of its key is
	// doubtful: it may be the same one at another due time.
	Known Millis
	// Dry has EndStored change nothing. Of several occurrences of a timer the later ones are StoredUnclear.
	Dry bool
}

// storedPerCall bounds the ids of a call, and storedPerRound those of a round trip, which Redis runs at a stretch: some
// microseconds each if no timer has them.
const storedPerCall, storedPerRound = 64, 128

// EndStored ends the timers whose messages a stream has, as settling does: once Redis was restored from a backup, or
// lost its last writes in a failover, it has them again. Timers that repeat get the occurrence after the stored one.
// ids are in the order of the stream. Where slots are moving it waits for them, for a time. It returns an outcome for
// each, also beside an error: then a StoredNone may be wrong. It is safe to repeat.
//
// A process that dies while it ends a timer that repeats leaves that claimed. Then EndStored must be repeated before
// the lease ends, or else the occurrence may be published again, under the same id.
func (s *Schedule) EndStored(ctx context.Context, as Stored, ids []StoredID) ([]StoredOutcome, error) {
	outcomes := make([]StoredOutcome, len(ids))
	for first := 0; first < len(ids); first += storedPerRound {
		todo := make([]int, min(storedPerRound, len(ids)-first))
		for i := range todo {
			todo[i] = first + i
		}
		for began := time.Now(); len(todo) > 0; {
			left, moving, err := s.endStored(ctx, as, ids, todo, outcomes)
			if moving != nil && time.Since(began) > movingWithin {
				err = cmp.Or(err, moving)
			} else if moving != nil {
				err = cmp.Or(err, pauseFor(ctx, movingPause))
			}
			if err != nil {
				return outcomes, fmt.Errorf("schedule: end timers with stored messages: %w", err)
			}
			todo = left
		}
	}
	return outcomes, nil
}

const (
	// movingWithin bounds the wait for the slots of some ids, and movingPause is the time between two tries.
	movingWithin = 30 * time.Second
	movingPause  = 100 * time.Millisecond
)

// pauseFor waits. It returns why ctx has ended, if it has.
func pauseFor(ctx context.Context, pause time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(pause):
		return nil
	}
}

// endStored ends the timers with some of the ids, by their indices, and writes the outcomes. It returns the indices to
// be asked about again: there was no room for them, a timer with their key has its next occurrence now, or their slots
// are moving, as an error says.
func (s *Schedule) endStored(ctx context.Context, as Stored, ids []StoredID, todo []int,
	outcomes []StoredOutcome) (left []int, moving, err error) {
	calls, members := s.storedCalls(as, ids, todo)
	var claimed []Outcome
	var claims []int            // the indices of claimed
	since := map[keys.Key]int{} // the index of a claimed occurrence
	for i, cmd := range s.Run(ctx, s.step("end_stored"), calls) {
		reply, failed := ReadReply(cmd, 1, 1)
		if IsMoving(failed) {
			left, moving = append(left, members[i]...), failed
			continue
		} else if failed != nil {
			err = failed
			continue
		}
		for j, m := range members[i] {
			if j >= len(reply) {
				left = append(left, m)
			} else if claim := reply.List(j); len(claim) < 2 {
				outcomes[m] = StoredOutcome(reply.Int(j))
			} else if o, ok := s.storedOccurrence(claim.Text(0), claim.Text(1), ids[m], as.Kind); ok {
				o.firing.Partition = calls[i].Partition
				claimed, claims, since[ids[m].Key] = append(claimed, o), append(claims, m), m
			} else {
				outcomes[m] = StoredDoubtful // it stays as it was found, with a lease
			}
		}
	}
	if failed := s.Settle(ctx, claimed); failed != nil {
		return nil, nil, errors.Join(err, failed)
	}
	for _, m := range claims {
		outcomes[m] = StoredEnded
	}
	if err != nil {
		return nil, nil, err
	}
	for _, m := range todo {
		if first, ok := since[ids[m].Key]; ok && m > first && outcomes[m] != StoredEnded {
			left = append(left, m)
		}
	}
	slices.Sort(left)
	return slices.Compact(left), moving, nil
}

// storedCalls returns the calls for some ids, by their indices, and the indices of each.
func (s *Schedule) storedCalls(as Stored, ids []StoredID, todo []int) (calls []Call, members [][]int) {
	kind := Outcome{Kind: as.Kind}
	head := []any{string(kind.accountKind()), as.Lease.Milliseconds(), int64(as.Known), as.Dry}
	at := map[keys.Partition]int{}
	for _, m := range todo {
		id, key := ids[m], ids[m].Key.String()
		p := s.Partition(key)
		n, ok := at[p]
		if !ok || len(members[n]) == storedPerCall {
			n = len(calls)
			args := slices.Clone(head)
			if !s.cluster { // else most calls have few
				args = slices.Grow(args, 4*min(storedPerCall, len(todo)))
			}
			at[p], calls, members = n, append(calls, Call{Partition: p, Args: args}), append(members, nil)
		}
		calls[n].Args = append(calls[n].Args, key, int64(id.Due), id.Attempt, id.occurrence())
		members[n] = append(members[n], m)
	}
	return calls, members
}

// occurrence returns the message's occurrence as the step takes it.
func (id StoredID) occurrence() string {
	if id.Occurrence == 0 {
		return ""
	}
	return fmt.Sprintf("%d,%s", id.Occurrence, id.Repeat)
}

// storedOccurrence returns the outcome of a claimed occurrence; false if its record cannot be read. The next one is the
// first after the message's due time, even if past: its event may be stored too. A message at a later time of the
// repetition has left out those before it; at any other time it was moved, and the next one follows its own time.
func (s *Schedule) storedOccurrence(ref, record string, id StoredID, kind OutcomeKind) (Outcome, bool) {
	f, err := newFiring(ref, record)
	if err != nil {
		return Outcome{}, false
	}
	f.ClaimedAt, f.Received, f.Took = id.Due.Time().Add(time.Millisecond), time.Now(), math.MaxInt64
	if id.Occurrence > 0 && f.Occurrence.Repeats() {
		o, r := *f.Occurrence, *f.Occurrence.repetition
		rule := o.Rule()
		if rule.Spec, err = s.specs.Parse(o.Repeat); err != nil {
			return Outcome{}, false
		}
		if next, ok := rule.Next(id.Due.Time().Add(-time.Millisecond)); ok && MillisOf(next) == id.Due {
			r.nominal = max(r.nominal, id.Due)
		}
		o.Number, o.repetition = id.Occurrence, &r
		f.Occurrence = &o
	}
	return f.Outcome(kind), true
}
