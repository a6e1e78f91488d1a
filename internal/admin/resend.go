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

// Firings sends firings again: each fires once more, as the replay of a dead letter does. An event is sent again once within
// a day, however often that is asked for; the one that it has become can be sent again too.
type Firings struct {
	schedule *schedule.Schedule
	past     *history.Reader
}

// NewFirings returns what sends the firings of a history again.
func NewFirings(s *schedule.Schedule, past *history.Reader) *Firings { return &Firings{s, past} }

// TooLargeError says that the payload of a firing is over the limit of the schedule, in bytes, and so cannot be sent again.
type TooLargeError struct{ Payload, Most int }

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("its payload has %d bytes, and TIMERD_MAX_PAYLOAD is %d now", e.Payload, e.Most)
}

// NoResend says why a firing cannot be sent again, as far as it tells that itself; nil if it can.
func NoResend(r history.Record) error {
	switch {
	case r.Fault != "":
		return errors.New("it is not an event: " + r.Fault)
	case r.Event.Status == event.StatusTooLarge:
		return errors.New("its payload was left out, as it was too large")
	}
	return nil
}

// Find returns a firing by its number in the stream, or why it cannot be sent again. Where of is not nil it is to be of that key.
func (f *Firings) Find(ctx context.Context, seq uint64, of *keys.Key) (r history.Record, why, err error) {
	r, there, err := f.past.Get(ctx, keys.Fired, seq)
	switch {
	case err != nil:
		return r, nil, err
	case !there:
		return r, errors.New("it is no longer in its stream"), nil
	case r.Fault == "" && of != nil && r.Key != *of:
		return r, errors.New("it is of another timer"), nil
	}
	why = NoResend(r)
	if most := f.schedule.MaxPayload(); why == nil && len(r.Event.Data) > most {
		why = &TooLargeError{len(r.Event.Data), most}
	}
	return r, why, nil
}

// Resent is what came of firings that were to be sent again.
type Resent struct {
	Sent    int64
	Before  int64 // sent again before
	Gone    int64 // not there any more when their turn came
	Crowded int64 // refused, as too many retries wait beside a newer timer of the key
}

// Resend sends firings again: those with these numbers in the stream that still have these ids. It calls progress after each. It
// ends between two of them when ctx does, and at the first error; what it returns beside an error is true.
func (f *Firings) Resend(ctx context.Context, ids map[uint64]string, progress func(Resent)) (done Resent, err error) {
	now, err := f.schedule.Clock(ctx)
	if err != nil {
		return done, err
	}
	for _, seq := range slices.Sorted(maps.Keys(ids)) {
		if ctx.Err() != nil {
			break
		}
		r, why, err := f.Find(ctx, seq, nil)
		if err != nil {
			return done, err
		}
		if why != nil || r.Event.ID != ids[seq] { // the stream may have been made anew
			done.Gone++
			continue
		}
		// Not with ctx, so that what came of it is known.
		_, fresh, err := f.schedule.Retry(context.WithoutCancel(ctx), retry.Replay(r.Event, schedule.MillisOf(now)))
		switch {
		case errors.Is(err, schedule.ErrTooManyRetries):
			done.Crowded++
		case err != nil:
			return done, err
		case fresh:
			done.Sent++
		default:
			done.Before++
		}
		progress(done)
	}
	return done, ctx.Err()
}
