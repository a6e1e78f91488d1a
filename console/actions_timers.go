package console

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/internal/moment"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// actionBatch is how many timers of a selection are touched in one round trip; others have as long for themselves after it.
const actionBatch = 64

// timersWork cancels timers, has them fire now, or sets them to another time.
type timersWork struct {
	actions *Actions
	index   *schedule.Schedule
	now     func(context.Context) time.Time
	name    string
	from    string // where they were chosen

	key  *keys.Key        // all timers of a key, to be cancelled
	list []schedule.Which // those that were selected
	all  *query.Query     // all that match
	what string           // how that was asked for

	found admin.TimerCount // of all, once they are counted
	until time.Time        // of a key: when the last of what was counted is due; the zero Time: all of it is meant, whatever it is by then
	to    time.Time        // of move
}

func (c *Console) newTimersWork(do string, form url.Values, r *http.Request) (work, error) {
	f := filterOf(form)
	w := &timersWork{actions: c.actions, index: c.sources.Index, now: c.now, name: do, from: "/timers?" + f.encode()}
	if form.Get("all") != "" {
		q, err := f.query(c.now(r.Context()))
		if err != nil {
			return nil, err
		}
		w.all, w.what = &q, describeFilter(f, q)
		return w, nil
	}
	if ref := form.Get("key"); ref != "" {
		key, err := decodeRef(ref)
		if err != nil {
			return nil, badRequest("key= is no timer's key: "+err.Error(), "Take the key as lists give it as ref.")
		}
		w.from = "/timers/" + encodeRef(key.String())
		if do == "cancel" {
			w.key = &key
			return w, nil
		}
		if form.Get("t") == "" {
			found, err := query.Inspect(r.Context(), c.sources.Index, key, 0)
			if err != nil {
				return nil, err
			}
			for _, t := range found.Timers {
				if t.State == query.StatePending {
					w.list = append(w.list, t.Which())
				}
			}
		}
	}
	for _, text := range form["t"] {
		which, err := decodeWhich(text)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(w.list, which) {
			w.list = append(w.list, which)
		}
	}
	switch {
	case len(w.list) == 0:
		return nil, errNothingSelected
	case len(w.list) > mostSelected:
		return nil, refuse("That is too many for one selection.", "Select at most 1,000, or all that match.")
	}
	return w, nil
}

// describeFilter says in words what a filter means.
func describeFilter(f filter, q query.Query) string {
	what := "all timers"
	switch {
	case q.Prefix != "": // also of a whole key, which other keys may begin with
		what += " whose keys begin with " + keys.EncodeText(clip(q.Prefix, 200))
	case q.ID != "":
		what += " of " + q.Namespace.String() + " whose ids contain " + keys.EncodeText(clip(q.ID, 200))
	case f.Query != "":
		what += " of " + keys.EncodeText(clip(f.Query, 200))
	}
	if f.State != "" {
		what += " that are " + f.State
	}
	switch f.Due {
	case "":
	case "overdue":
		what += " that are overdue"
	default:
		what += " that are due within " + f.Due
	}
	return what
}

func (w *timersWork) do() string   { return w.name }
func (w *timersWork) back() string { return w.from }

func (w *timersWork) title() string {
	what := w.what
	switch {
	case w.key != nil:
		what = keys.EncodeText(w.key.String())
	case len(w.list) == 1:
		what = keys.EncodeText(w.list[0].Key.String())
	case w.all == nil:
		what = counted(int64(len(w.list)), "selected timer", "selected timers")
	}
	return actionName(w.name) + ": " + what
}

// AsksTime tells whether a time is to be filled in.
func (w *timersWork) AsksTime() bool { return w.name == "move" }

func (w *timersWork) count(ctx context.Context, tell func(Count)) (Count, error) {
	c := Count{Noun: "timers"}
	switch {
	case w.key != nil:
		found, err := query.Inspect(ctx, w.index, *w.key, 0)
		if err != nil {
			return c, err
		}
		c.AtLeast, w.until = found.More, found.Now
		for _, t := range found.Timers {
			if t.Due.After(w.until) {
				w.until = t.Due
			}
			if t.State == query.StateFiring {
				c.Warnings = append(c.Warnings, "One is firing already: it is too late to cancel that.")
				continue
			}
			c.Touches++
			if t.Repeat != "" {
				c.Warnings = append(c.Warnings, "It repeats: to cancel it ends the repetition.")
			}
		}
		if found.More || found.Repeats {
			w.until = time.Time{}
		}
		return c, nil
	case w.all == nil:
		var names []string
		for _, which := range w.list {
			names = append(names, keys.EncodeText(which.Key.String()))
		}
		c.Touches, c.Some = int64(len(w.list)), sample(names)
		return c, nil
	}
	of := func(f admin.TimerCount) Count {
		c := Count{Noun: "timers", Touches: f.Timers, AtLeast: f.Cut, Looked: f.Looked, Total: f.Total}
		if f.Late > 0 {
			c.Warnings = append(c.Warnings, counted(f.Late, "of them is due already, and perhaps too late.", "of them are due already, and perhaps too late."))
		}
		return c
	}
	var err error
	w.found, err = w.actions.Bulk.Count(ctx, *w.all, func(f admin.TimerCount) { tell(of(f)) })
	return of(w.found), err
}

func (w *timersWork) confirm(form url.Values) error {
	if !w.AsksTime() {
		return nil
	}
	const fix = "Write how long from now, such as 10m, 2h or 3d, or an instant such as 2026-11-20T09:00:00Z."
	at, err := moment.Parse(form.Get("to"))
	if err != nil {
		return refuse("To which time? "+err.Error()+".", fix)
	}
	now := w.now(context.Background())
	w.to = at.From(now)
	if !w.to.After(now) || w.to.After(now.Add(10*365*24*time.Hour)) {
		return refuse("That time is over, or more than 10 years ahead.", fix)
	}
	return nil
}

func (w *timersWork) run(ctx context.Context, tell func([]Tally)) ([]Tally, error) {
	switch {
	case w.key != nil:
		return w.cancelKey(ctx)
	case w.all != nil && w.name == "cancel":
		done, err := w.actions.Bulk.Cancel(ctx, w.found.Counted, func(c admin.Cancelled) { tell(cancelTallies(c)) })
		return cancelTallies(done), err
	case w.all != nil:
		done, err := w.actions.Bulk.Move(ctx, w.found.Counted, w.to, func(m admin.Moved) { tell(w.moveTallies(m)) })
		return w.moveTallies(done), err
	}
	var cancelled admin.Cancelled
	var moved admin.Moved
	for some := range slices.Chunk(w.list, actionBatch) {
		if ctx.Err() != nil {
			break
		}
		began := time.Now()
		var err error
		// Not with ctx, so that what came of these is known.
		if w.name == "cancel" {
			err = w.cancelSome(context.WithoutCancel(ctx), some, &cancelled)
			tell(cancelTallies(cancelled))
		} else {
			err = w.moveSome(context.WithoutCancel(ctx), some, &moved)
			tell(w.moveTallies(moved))
		}
		if err != nil {
			return w.tallies(cancelled, moved), err
		}
		backoff.Sleep(ctx, time.Since(began))
	}
	return w.tallies(cancelled, moved), ctx.Err()
}

func (w *timersWork) tallies(c admin.Cancelled, m admin.Moved) []Tally {
	if w.name == "cancel" {
		return cancelTallies(c)
	}
	return w.moveTallies(m)
}

// cancelKey cancels the timers of a key that were counted: one that was set since and is due later stays. A repetition ends
// whichever of its occurrences is pending by now.
func (w *timersWork) cancelKey(ctx context.Context) ([]Tally, error) {
	ctx = context.WithoutCancel(ctx)
	var outcome client.Outcome
	var err error
	if w.until.IsZero() {
		outcome, err = w.actions.Timers.Cancel(ctx, w.key.String())
	} else {
		var results []client.CancelResult
		results, err = w.actions.Timers.CancelDue(ctx, []client.Due{{Key: w.key.String(), Due: w.until}})
		outcome = results[0].Outcome
	}
	if err != nil {
		return nil, err
	}
	names := map[client.Outcome]string{client.Cancelled: "cancelled", client.Fired: "too late", client.Unknown: "gone meanwhile"}
	return []Tally{{names[outcome], 1}}, nil
}

func (w *timersWork) cancelSome(ctx context.Context, some []schedule.Which, c *admin.Cancelled) error {
	due := make([]client.Due, len(some))
	for i, which := range some {
		due[i] = client.Due{Key: which.Key.String(), Due: which.Due, Alone: true}
	}
	results, err := w.actions.Bulk.CancelDue(ctx, due)
	for _, r := range results {
		switch {
		case r.Err != nil: // err tells
		case r.Outcome == client.Cancelled:
			c.Cancelled++
		case r.Outcome == client.Fired:
			c.TooLate++
		default:
			c.Gone++
		}
	}
	return err
}

func (w *timersWork) moveSome(ctx context.Context, some []schedule.Which, m *admin.Moved) error {
	moves := make([]schedule.Move, len(some))
	for i, which := range some {
		moves[i] = schedule.Move{Which: which, To: w.to}
	}
	results, err := w.actions.Schedule.Move(ctx, moves)
	var failed []error
	for _, r := range results {
		switch {
		case r.Err != nil:
			failed = append(failed, r.Err)
		case r.Outcome == schedule.MoveDone:
			m.Moved++
		case r.Outcome == schedule.MoveTooLate:
			m.TooLate++
		case r.Outcome == schedule.MoveHeld:
			m.Held++
		case r.Outcome == schedule.MoveDenied:
			m.Denied++
		default:
			m.Changed++
		}
	}
	if err == nil && len(failed) > 0 {
		err = errors.Join(failed...)
	}
	return err
}

func cancelTallies(c admin.Cancelled) []Tally {
	return someTallies([]Tally{{"cancelled", c.Cancelled}, {"too late", c.TooLate}, {"gone meanwhile", c.Gone}})
}

func (w *timersWork) moveTallies(m admin.Moved) []Tally {
	done := "moved"
	if w.name == "fire" {
		done = "set to fire now"
	}
	return someTallies([]Tally{
		{done, m.Moved}, {"too late", m.TooLate}, {"held: resume them instead", m.Held}, {"changed meanwhile", m.Changed},
		{"not allowed: timerd may not write the key", m.Denied},
	})
}

// someTallies leaves out what did not happen, but for the first.
func someTallies(all []Tally) []Tally {
	return slices.DeleteFunc(all, func(t Tally) bool { return t.N == 0 && t.Name != all[0].Name })
}
