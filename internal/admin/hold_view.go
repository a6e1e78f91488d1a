package admin

import (
	"context"
	"fmt"

	"github.com/timerd-io/timerd/schedule"
)

// HoldView is a hold, and how many timers it holds.
type HoldView struct {
	schedule.Hold
	// Held is how many are held that are due, those included that no claim has looked at yet; one under several holds counts
	// for each. It is nil if so many are owed or firing that not all of these were looked at.
	Held *int64
}

// List returns the holds, those included that are being resumed, in the order of their namespaces. It reads the names of all
// that is due.
func (s *Holds) List(ctx context.Context) ([]HoldView, error) {
	if err := s.schedule.CheckMode(ctx); err != nil {
		return nil, err
	}
	list, err := s.schedule.Holds(ctx)
	if err != nil || len(list.Holds) == 0 {
		return nil, err
	}
	counts, cut := make([]int64, len(list.Holds)), false
	err = s.schedule.Names(ctx, schedule.Query{States: []schedule.State{schedule.StateHeld}}, func(p schedule.Page) bool {
		for _, timer := range p.Timers {
			for i, h := range list.Holds {
				if timer.State == schedule.StateHeld && h.Namespace.Match(timer.Key) {
					counts[i]++
				}
			}
		}
		cut = p.Cut
		return !p.Until.After(p.Now)
	})
	if err != nil {
		return nil, fmt.Errorf("count the held timers: %w", err)
	}
	views := make([]HoldView, len(list.Holds))
	for i, h := range list.Holds {
		views[i].Hold = h
		if !cut {
			views[i].Held = &counts[i]
		}
	}
	return views, nil
}
