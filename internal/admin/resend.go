package admin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/retry"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Firings sends firings again. A firing sent again is a new timer that fires at once, as in the replay of a dead
// letter. Within a day an event is sent again only once, however often somebody asks. The resulting event can be sent
// again too.
type Firings struct {
	schedule *schedule.Schedule
	past     *history.Reader
}

// NewFirings returns the Firings of a history.
func NewFirings(s *schedule.Schedule, past *history.Reader) *Firings { return &Firings{s, past} }

// TooLargeError means that a firing cannot be sent again, because its payload is over the schedule's limit. Both sizes
// are in bytes.
type TooLargeError struct{ Payload, Most int }

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("its payload has %d bytes, and TIMERD_MAX_PAYLOAD is %d now", e.Payload, e.Most)
}

// NoResend returns why a firing cannot be sent again, judged by its record alone; nil if the record does not forbid it.
func NoResend(r history.Record) error {
	switch {
	case r.Fault != "":
		return errors.New("it is not an event: " + r.Fault)
	case r.Event.Status == event.StatusTooLarge:
		return errors.New("its payload was left out, being too large")
	}
	return nil
}

// Find returns a firing by its number in the stream; why is the reason if it cannot be sent again. If of is not nil,
// the firing must be of that key.
func (f *Firings) Find(ctx context.Context, seq uint64, of *keys.Key) (r history.Record, why, err error) {
	r, there, err := f.past.Get(ctx, keys.Fired, seq)
	switch {
	case err != nil:
		return r, nil, err
	case !there:
		return r, errors.New("it is no longer in its stream"), nil
	case r.Fault == "" && of != nil && r.Key != *of:
		return r, errors.New("it belongs to another timer"), nil
	}
	why = NoResend(r)
	if most := f.schedule.MaxPayload(); why == nil && len(r.Event.Data) > most {
		why = &TooLargeError{len(r.Event.Data), most}
	}
	return r, why, nil
}

// Resent is the result of sending firings again.
type Resent struct {
	Sent    int64
	Before  int64 // sent again before
	Gone    int64 // gone by their turn
	Crowded int64 // refused: too many retries wait beside a newer timer of the key
	// Misplaced is the number refused because a guard is of another slot of the cluster.
	Misplaced int64
}

// Resend sends again the firings with these numbers in the stream, if they still have these ids. It calls progress
// after each. It stops between two of them when ctx ends, and at the first error but schedule.ErrGuardSlot, which it
// returns at the end, with the numbers of those refused; the result is valid beside an error too.
func (f *Firings) Resend(ctx context.Context, ids map[uint64]string, progress func(Resent)) (done Resent, err error) {
	now, err := f.schedule.Clock(ctx)
	if err != nil {
		return done, err
	}
	var misplaced refusals
	for _, seq := range slices.Sorted(maps.Keys(ids)) {
		if ctx.Err() != nil {
			break
		}
		r, why, err := f.Find(ctx, seq, nil)
		if err != nil {
			return done, err
		}
		if why != nil || r.Event.ID != ids[seq] { // the stream may have been created again
			done.Gone++
			continue
		}
		// Without ctx's end, so that the result of a started retry is known.
		_, fresh, err := f.schedule.Retry(context.WithoutCancel(ctx), retry.Replay(r.Event, schedule.MillisOf(now)))
		switch {
		case errors.Is(err, schedule.ErrTooManyRetries):
			done.Crowded++
		case errors.Is(err, schedule.ErrGuardSlot):
			done.Misplaced++
			misplaced.add(seq, err)
		case err != nil:
			return done, errors.Join(err, misplaced.error(misplacedEvents))
		case fresh:
			done.Sent++
		default:
			done.Before++
		}
		progress(done)
	}
	return done, errors.Join(ctx.Err(), misplaced.error(misplacedEvents))
}

// misplacedEvents is the error about events whose guards are of other slots.
const misplacedEvents = "%d events are not sent again, numbers %s: %w"
