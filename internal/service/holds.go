package service

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/schedule"
)

// newHolds returns a timerd's part in the holds of the schedule.
func newHolds(sched *schedule.Schedule, all *nodes, instance string, m *metrics, log *slog.Logger) *admin.Holds {
	h := admin.NewHolds(sched)
	h.Instance, h.Logger = instance, log
	h.Nodes = func(context.Context) ([]*schedule.Node, error) {
		served := slices.Collect(maps.Keys(all.list()))
		if len(served) == 0 {
			return nil, errors.New("the servers of the schedule are not known yet")
		}
		return served, nil
	}
	h.OnList = func(l *schedule.HoldList) {
		n := 0
		for _, hold := range l.Holds {
			if hold.Lasts(l.Now) {
				n++
			}
		}
		m.holds.Set(float64(n))
	}
	return h
}
