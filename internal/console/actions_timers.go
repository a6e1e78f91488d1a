package console

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// timersWork cancels timers, makes them fire now, or sets them to another time.
type timersWork struct {
	request
	actions *Actions
	index   *schedule.Schedule
	now     func(context.Context) time.Time

	key  *keys.Key        // all timers of a key, to be cancelled
	list []schedule.Which // the selected timers
	all  *query.Query     // all matching timers
	what string           // the selection in words

	found admin.TimerCount // of all, once they are counted
	// until limits the timers of key: it is the due time of the last timer counted. If it is the zero Time, the action
	// takes all timers of the key that exist when it runs.
	until time.Time
	to    time.Time // of move
}

func newTimersWork(actions *Actions, s *shared, do string, form url.Values, r *http.Request) (work, error) {
	f := filterOf(form)
	w := &timersWork{request: request{name: do, from: f.address()}, actions: actions, index: s.sources.Index,
		now: s.now}
	if form.Get("all") != "" {
		q, err := f.query(s.now(r.Context()))
		if err != nil {
			return nil, err
		}
		w.all, w.what = &q, describeFilter(f, q)
		return w, nil
	}
	if ref := form.Get("key"); ref != "" {
		key, err := decodeRef(ref)
		if err != nil {
			return nil, badRequest("key= is no timer's key: "+err.Error(), "Take the ref of a list.")
		}
		w.from = "/timers/" + encodeRef(key.String())
		if do == "cancel" {
			w.key = &key
			return w, nil
		}
		if form.Get("t") == "" {
			found, err := query.Inspect(r.Context(), s.sources.Index, key, 0)
			if err != nil {
				return nil, err
			}
			w.list = found.Pending()
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

// describeFilter describes a filter in words.
func describeFilter(f filter, q query.Query) string {
	what := "all timers"
	switch {
	case q.Prefix != "": // also for a whole key: other keys may begin with it
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

// AsksTime reports whether the user has to fill in a time.
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
			c.Warnings = append(c.Warnings, counted(f.Late, "of them is due already, and perhaps too late.",
				"of them are due already, and perhaps too late."))
		}
		return c
	}
	var err error
	w.found, err = w.actions.Timers.Count(ctx, admin.Selection{Query: *w.all}, func(f admin.TimerCount) { tell(of(f)) })
	return of(w.found), err
}

func (w *timersWork) confirm(form url.Values) error {
	if !w.AsksTime() {
		return nil
	}
	const fix = "Write how long from now, such as 10m, 2h or 3d, or an instant such as 2026-11-20T09:00:00Z."
	at, err := admin.ParseMoment(form.Get("to"))
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
	if w.key != nil {
		outcome, err := w.actions.Timers.CancelKey(context.WithoutCancel(ctx), w.key.String(), w.until)
		if err != nil {
			return nil, err
		}
		if outcome == client.Cancelled {
			w.note(admin.TimersEntry(event.EntryCancel, 1, w.key.String()))
		}
		names := map[client.Outcome]string{client.Cancelled: "cancelled", client.Fired: "too late",
			client.Unknown: "gone meanwhile"}
		return []Tally{{names[outcome], 1}}, nil
	}
	sel := admin.Selection{Chosen: w.list}
	if w.all != nil {
		sel = w.found.Counted
	}
	if w.name == "cancel" {
		done, err := w.actions.Timers.Cancel(ctx, sel, func(c admin.Cancelled) { tell(cancelTallies(c)) })
		w.note(w.entry(event.EntryCancel, done.Cancelled))
		if err == nil && done.Cut {
			err = query.ErrCut
		}
		return cancelTallies(done), err
	}
	done, err := w.actions.Timers.Move(ctx, sel, w.to, func(m admin.Moved) { tell(w.moveTallies(m)) })
	w.note(w.entry(event.EntryKind(w.name), done.Moved))
	return w.moveTallies(done), err
}

// entry returns the entry of an action that has changed n timers of the selection.
func (w *timersWork) entry(kind event.EntryKind, n int64) event.Entry {
	e := event.Entry{Kind: kind, Count: n}
	var words []string
	if w.all != nil {
		e.Namespace, words = namespaceOf(*w.all).String(), append(words, w.what)
	} else {
		var names []string
		for _, which := range w.list[:min(len(w.list), event.MaxEntrySubjects)] {
			names = append(names, which.Key.String())
		}
		e = admin.TimersEntry(kind, n, names...)
	}
	if kind == event.EntryMove {
		words = append(words, "to "+w.to.UTC().Format(jsonLayout))
	}
	e.Detail = strings.Join(words, ", ")
	return e
}

// namespaceOf returns the narrowest known namespace of a query's timers.
func namespaceOf(q query.Query) (n keys.Namespace) {
	if q.Prefix == "" {
		return q.Namespace
	}
	parts := strings.SplitN(q.Prefix, ":", 4)
	for i, part := range []*string{&n.App, &n.Module, &n.Type} {
		if i+1 < len(parts) { // the last part may be incomplete
			*part = parts[i]
		}
	}
	return n
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
		{done, m.Moved}, {"too late", m.TooLate}, {"held: resume them instead", m.Held},
		{"changed meanwhile", m.Changed},
		{"not allowed: timerd may not write the key", m.Denied},
	})
}
