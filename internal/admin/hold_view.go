package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// HoldView is a namespace on hold, or one whose timers are still being released, as timerd holds --json and the console
// show it. Text typed by an operator is encoded like the attributes of events.
type HoldView struct {
	Namespace string     `json:"namespace"`
	Since     time.Time  `json:"since"`
	Until     *time.Time `json:"until"` // null: until somebody resumes it
	Reason    string     `json:"reason"`
	By        string     `json:"by"`
	// Held is the number of due timers on hold, including ones not reached by a claim yet; a timer under several holds
	// counts for each. It is null if not all could be counted: too many are owed or firing, or slots of a cluster are
	// moving.
	Held   *int64      `json:"held"`
	Resume *ResumeView `json:"resume"` // null while the hold lasts
}

// ResumeView is how a hold is being resumed.
type ResumeView struct {
	Kind  schedule.ResumeKind `json:"kind"`
	Rate  float64             `json:"rate,omitempty"` // timers a second
	Since time.Time           `json:"since"`
	By    string              `json:"by"`
}

func newHoldView(h schedule.Hold, held *int64) HoldView {
	v := HoldView{
		Namespace: h.Namespace.String(), Since: h.Since.Time(), Reason: keys.EncodeText(h.Reason),
		By: keys.EncodeText(h.By), Held: held,
	}
	if h.Until > 0 {
		until := h.Until.Time()
		v.Until = &until
	}
	if r := h.Resume; r != nil {
		v.Resume = &ResumeView{r.Kind, r.Rate, r.At.Time(), keys.EncodeText(r.By)}
	}
	return v
}

// List returns the holds in the order of their namespaces, including those being resumed. It reads the names of all due
// timers.
func (s *Holds) List(ctx context.Context) ([]HoldView, error) {
	if err := s.schedule.CheckMode(ctx); err != nil {
		return nil, err
	}
	list, err := s.schedule.Holds(ctx)
	if err != nil || len(list.Holds) == 0 {
		return nil, err
	}
	counts, cut := make([]int64, len(list.Holds)), false
	err = query.Names(ctx, s.schedule, query.Query{States: []query.State{query.StateHeld}}, func(p query.Page) bool {
		for _, timer := range p.Timers {
			for i, h := range list.Holds {
				if timer.State == query.StateHeld && h.Namespace.Match(timer.Key) {
					counts[i]++
				}
			}
		}
		cut = p.Cut
		return !p.Until.After(p.Now)
	})
	if _, moving := errors.AsType[*query.MovingError](err); moving {
		err, cut = nil, true
	}
	if err != nil {
		return nil, fmt.Errorf("count the held timers: %w", err)
	}
	views := make([]HoldView, len(list.Holds))
	for i, h := range list.Holds {
		held := &counts[i]
		if cut {
			held = nil
		}
		views[i] = newHoldView(h, held)
	}
	return views, nil
}
