package console

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/retry"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// resendWork sends firings again: each fires once more, as the replay of a dead letter does. An event is sent again once within
// a day, however often that is asked for; the one that it has become can be sent again too.
type resendWork struct {
	actions *Actions
	index   *schedule.Schedule
	past    *history.Reader
	key     *keys.Key // of the events, if that was given
	seqs    []uint64  // in the stream of firings
	from    string

	ids map[uint64]string // of the events that can be sent, once they are counted
}

func (c *Console) newResendWork(form url.Values) (work, error) {
	w := &resendWork{actions: c.actions, index: c.sources.Index, past: c.sources.History, from: "/timers"}
	var err error
	if w.seqs, err = selectedSeqs(form); err != nil {
		return nil, err
	}
	w.seqs = slices.Compact(slices.Sorted(slices.Values(w.seqs)))
	if ref := form.Get("key"); ref != "" {
		key, err := decodeRef(ref)
		if err != nil {
			return nil, badRequest("key= is no timer's key: "+err.Error(), "Take the key as lists give it as ref.")
		}
		w.key, w.from = &key, "/timers/"+encodeRef(key.String())
	}
	return w, nil
}

func (w *resendWork) do() string               { return "resend" }
func (w *resendWork) back() string             { return w.from }
func (w *resendWork) confirm(url.Values) error { return nil }

func (w *resendWork) title() string {
	what := counted(int64(len(w.seqs)), "selected event", "selected events")
	if len(w.seqs) == 1 {
		what = "event " + strconv.FormatUint(w.seqs[0], 10)
	}
	if w.key != nil {
		what += " of " + keys.EncodeText(w.key.String())
	}
	return actionName("resend") + ": " + what
}

// noResend says why a firing cannot be sent again; "" if it can.
func noResend(r history.Record) string {
	switch {
	case r.Fault != "":
		return "it is not an event: " + r.Fault
	case r.Event.Status == event.StatusTooLarge:
		return "its payload was left out, as it was too large"
	}
	return ""
}

// find returns an event, or says why it cannot be sent again.
func (w *resendWork) find(ctx context.Context, seq uint64) (r history.Record, why string, err error) {
	r, there, err := w.past.Get(ctx, keys.Fired, seq)
	switch {
	case err != nil:
		return r, "", err
	case !there:
		return r, "it has gone from its stream", nil
	case r.Fault == "" && w.key != nil && r.Key != *w.key:
		return r, "it is of another timer", nil
	}
	why = noResend(r)
	if most := w.actions.Schedule.MaxPayload(); why == "" && len(r.Event.Data) > most {
		why = fmt.Sprintf("its payload has %s bytes, and TIMERD_MAX_PAYLOAD is %s now", grouped(int64(len(r.Event.Data))), grouped(int64(most)))
	}
	return r, why, nil
}

func (w *resendWork) count(ctx context.Context, tell func(Count)) (Count, error) {
	c := Count{Noun: "events"}
	w.ids = map[uint64]string{}
	var names, warnings []string
	for _, seq := range w.seqs {
		r, why, err := w.find(ctx, seq)
		if err != nil {
			return c, err
		}
		if why != "" {
			warnings = append(warnings, fmt.Sprintf("Event %d cannot be sent again: %s.", seq, why))
			continue
		}
		w.ids[seq] = r.Event.ID
		names = append(names, keys.EncodeText(r.Key.String())+", attempt "+strconv.Itoa(r.Event.Attempt))
		c.Touches++
		tell(c)
	}
	c.Some, c.Warnings = sample(names), sample(warnings)
	if c.Touches > 0 {
		c.Warnings = append(c.Warnings,
			"All consumers of the subject get it, not only the webhook: the timer fires once more, at once, with its key and payload, as attempt 1. A newer timer of its key stays, and both fire.",
			"Under a hold it waits until that is released. An event is sent again once within a day; after that, asked for again, it fires again.",
			"Its origin stays the same, and so the webhook-id: a receiver that remembers that takes it for a repetition, and may do nothing.")
	}
	return c, nil
}

func (w *resendWork) run(ctx context.Context, tell func([]Tally)) ([]Tally, error) {
	now, err := redisNow(ctx, w.index)
	if err != nil {
		return nil, err
	}
	var sent, before, gone, crowded int64
	tallies := func() []Tally {
		return someTallies([]Tally{
			{"sent again", sent}, {"sent again before: send the newer event", before}, {"gone meanwhile", gone},
			{"refused, as too many retries wait beside a newer timer of the key", crowded},
		})
	}
	for _, seq := range slices.Sorted(maps.Keys(w.ids)) {
		if ctx.Err() != nil {
			break
		}
		r, why, err := w.find(ctx, seq)
		if err != nil {
			return tallies(), err
		}
		if why != "" || r.Event.ID != w.ids[seq] { // the stream may have been made anew
			gone++
			continue
		}
		// Not with ctx, so that what came of it is known.
		_, fresh, err := w.actions.Schedule.Retry(context.WithoutCancel(ctx), retry.Replay(r.Event, now))
		switch {
		case errors.Is(err, schedule.ErrTooManyRetries):
			crowded++
		case err != nil:
			return tallies(), err
		case fresh:
			sent++
		default:
			before++
		}
		tell(tallies())
	}
	return tallies(), ctx.Err()
}
