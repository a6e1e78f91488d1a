package console

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/keys"
)

// resendWork sends firings again.
type resendWork struct {
	request
	actions *Actions
	key     *keys.Key // of the events, if given
	seqs    []uint64  // in the stream of firings

	ids   map[uint64]string // of the sendable events, once counted
	names []string          // their keys
}

func newResendWork(actions *Actions, form url.Values) (work, error) {
	w := &resendWork{request: request{name: "resend", from: "/timers"}, actions: actions}
	var err error
	if w.seqs, err = selectedSeqs(form); err != nil {
		return nil, err
	}
	w.seqs = slices.Compact(slices.Sorted(slices.Values(w.seqs)))
	if ref := form.Get("key"); ref != "" {
		key, err := decodeRef(ref)
		if err != nil {
			return nil, badRequest("key= is no timer's key: "+err.Error(), "Take the ref of a list.")
		}
		w.key, w.from = &key, "/timers/"+encodeRef(key.String())
	}
	return w, nil
}

func (w *resendWork) title() string {
	what := counted(int64(len(w.seqs)), "selected event", "selected events")
	if len(w.seqs) == 1 {
		what = "event " + strconv.FormatUint(w.seqs[0], 10)
	}
	if w.key != nil {
		what += " of " + keys.EncodeText(w.key.String())
	}
	return actionName(w.name) + ": " + what
}

func (w *resendWork) count(ctx context.Context, tell func(Count)) (Count, error) {
	c := Count{Noun: "events"}
	w.ids, w.names = map[uint64]string{}, nil
	var names, warnings []string
	for _, seq := range w.seqs {
		r, why, err := w.actions.Firings.Find(ctx, seq, w.key)
		if err != nil {
			return c, err
		}
		if large, is := errors.AsType[*admin.TooLargeError](why); is {
			why = fmt.Errorf("its payload has %s bytes, and TIMERD_MAX_PAYLOAD is %s now",
				grouped(int64(large.Payload)), grouped(int64(large.Most)))
		}
		if why != nil {
			warnings = append(warnings, fmt.Sprintf("Event %d cannot be sent again: %v.", seq, why))
			continue
		}
		w.ids[seq] = r.Event.ID
		w.names = append(w.names, r.Key.String())
		names = append(names, keys.EncodeText(r.Key.String())+", attempt "+strconv.Itoa(r.Event.Attempt))
		c.Touches++
		tell(c)
	}
	c.Some, c.Warnings = sample(names), sample(warnings)
	if c.Touches > 0 {
		c.Warnings = append(c.Warnings,
			"All consumers of the subject get it, not only the webhook: the timer fires once more, at once, with its "+
				"key and payload, as attempt 1. A newer timer of its key stays, and both fire.",
			"Under a hold it waits for the resume. Within a day an event is sent again once; after that it can be "+
				"sent again.",
			"Its origin stays the same, and so does the webhook-id: a receiver that remembers it may take it for a "+
				"repetition and do nothing.")
	}
	return c, nil
}

func (w *resendWork) run(ctx context.Context, tell func([]Tally)) ([]Tally, error) {
	tallies := func(r admin.Resent) []Tally {
		return someTallies([]Tally{
			{"sent again", r.Sent}, {"sent again before: send the newer event", r.Before}, {"gone meanwhile", r.Gone},
			{"refused: too many retries wait beside a newer timer of the key", r.Crowded},
			{"refused: a guard is not in the slot of the key", r.Misplaced},
		})
	}
	done, err := w.actions.Firings.Resend(ctx, w.ids, func(r admin.Resent) { tell(tallies(r)) })
	w.note(admin.TimersEntry(event.EntryResend, done.Sent, w.names...))
	return tallies(done), err
}
