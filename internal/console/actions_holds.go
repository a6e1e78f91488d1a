package console

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// holdWork holds a namespace or resumes it.
type holdWork struct {
	request
	actions *Actions
	list    func(context.Context) ([]admin.HoldView, error)
	hold    schedule.Hold // the hold; its By also names the author of a resume
	lasts   time.Duration // duration; 0: until somebody resumes it
	how     schedule.Resume
}

func newHoldWork(actions *Actions, s *shared, do string, form url.Values, who string) (work, error) {
	text := strings.TrimSpace(form.Get("namespace"))
	n, err := keys.ParseNamespace(text)
	if err != nil {
		return nil, badRequest(err.Error(),
			"A namespace is app[:module[:type]], with * for any part, such as pay:refund.")
	}
	w := &holdWork{request: request{name: do, from: "/holds"}, actions: actions, list: s.sources.Holds,
		hold: schedule.Hold{Namespace: n, By: who + " in the console"}}
	if do == "resume" {
		return w, nil
	}
	w.hold.Reason = typed(form, "reason")
	if len(w.hold.Reason) > admin.MaxReason {
		return nil, refuse("The reason is too long.", "Write at most 1,024 bytes.")
	}
	if text := strings.TrimSpace(form.Get("for")); text != "" {
		d, err := admin.ParseDuration(text)
		if err != nil || d < admin.MinHold || d > 10*365*24*time.Hour {
			return nil, refuse("“"+clip(text, 50)+"” is no duration of a second or more.",
				"Write how long it is to last, such as 2h or 3d, or nothing.")
		}
		w.lasts = d
	}
	return w, nil
}

func (w *holdWork) title() string { return actionName(w.name) + ": " + w.hold.Namespace.String() }

// AsksHow reports whether the user has to choose how timers are released.
func (w *holdWork) AsksHow() bool { return w.name == "resume" }

func (w *holdWork) count(ctx context.Context, tell func(Count)) (Count, error) {
	c := Count{Noun: "timers"}
	if w.name == "hold" {
		if w.hold.Reason != "" {
			c.Warnings = append(c.Warnings, "Reason: "+keys.EncodeText(w.hold.Reason))
		}
		if w.lasts > 0 {
			c.Warnings = append(c.Warnings, "It ends by itself after "+about(w.lasts)+".")
		}
		found, err := w.actions.Timers.Count(ctx, admin.Selection{Query: query.Query{Namespace: w.hold.Namespace}},
			func(f admin.TimerCount) {
				tell(Count{Noun: "timers", Touches: f.Timers, Looked: f.Looked, Total: f.Total})
			})
		c.Touches, c.AtLeast, c.Looked, c.Total = found.Timers, found.Cut, found.Looked, found.Total
		return c, err
	}
	view, err := w.view(ctx)
	switch {
	case err != nil:
		return c, err
	case view == nil:
		return c, &fault{Status: 422, Title: "Not held", Detail: w.hold.Namespace.String() +
			" is not held: it has been resumed.", Fix: "Look at the holds."}
	case view.Held == nil:
		c.AtLeast = true
	default:
		c.Touches = *view.Held
	}
	return c, nil
}

// view returns the hold, nil if there is none.
func (w *holdWork) view(ctx context.Context) (*admin.HoldView, error) {
	views, err := w.list(ctx)
	if err != nil {
		return nil, err
	}
	for i := range views {
		if views[i].Namespace == w.hold.Namespace.String() {
			return &views[i], nil
		}
	}
	return nil, nil
}

func (w *holdWork) confirm(form url.Values) error {
	if !w.AsksHow() {
		return nil
	}
	w.how = schedule.Resume{Kind: schedule.ResumeKind(form.Get("how")), By: w.hold.By}
	switch w.how.Kind {
	case schedule.ResumeNow, schedule.ResumeShift, schedule.ResumeDead:
	case schedule.ResumeRate:
		rate, err := admin.ParseRate(strings.ReplaceAll(form.Get("rate"), " ", ""))
		if err != nil {
			return refuse("At which rate? "+err.Error()+".", "Write a number of timers and a unit, such as 200/s.")
		}
		w.how.Rate = rate
	default:
		return refuse("How are they to be released?", "Choose one of the four.")
	}
	return nil
}

func (w *holdWork) run(ctx context.Context, tell func([]Tally)) ([]Tally, error) {
	if w.name == "hold" {
		held, err := w.actions.Holds.Hold(ctx, w.hold, w.lasts)
		if err != nil {
			return nil, err
		}
		w.changed = new(admin.HoldEntry(held.Hold))
		if len(held.Missing) > 0 {
			return nil, errors.New("the hold stands, but these may still claim timers: " +
				strings.Join(held.Missing, "; ") + "; hold it again to see whether it is complete")
		}
		if len(held.Unreplicated) > 0 {
			return []Tally{{"held; no replica has the hold, so it is as durable as the server", 1}}, nil
		}
		return []Tally{{"held", 1}}, nil
	}
	return w.resume(ctx, tell)
}

// resume releases the timers. The timerds do so too; their releases are counted separately.
func (w *holdWork) resume(ctx context.Context, tell func([]Tally)) ([]Tally, error) {
	var held, released int64
	if view, err := w.view(ctx); err == nil && view != nil && view.Held != nil {
		held = *view.Held
	}
	var kept int64
	err := w.actions.Holds.Resume(ctx, w.hold.Namespace, w.how, func(p admin.ResumeProgress) {
		released, kept = int64(p.Released), p.Kept
		tell([]Tally{{"released", released}})
	})
	if err == nil || released > 0 {
		w.changed = new(admin.ResumeEntry(w.hold.Namespace, w.how, released))
	}
	rest := int64(0)
	if err == nil {
		rest = max(held-released-kept, 0)
	}
	return someTallies([]Tally{{"released", released}, {"stay held by other holds, until these end", kept},
		{"released by the timerds, or cancelled", rest}}), err
}
