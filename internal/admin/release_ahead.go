package admin

import (
	"context"

	"github.com/timerd-io/timerd/schedule"
)

// setBack undoes the effects of a Redis clock that was ahead: times drawn at a rate that lie too far ahead are drawn
// again, and a resume that began ahead begins now. It reports whether it has written the list.
func (r *releaser) setBack(ctx context.Context, l *schedule.HoldList, h schedule.Hold) (changed bool, err error) {
	if l.DrawnAhead(&h, releaseLead, drawFor) {
		nodes, err := r.Nodes(ctx)
		if err != nil {
			return false, err
		}
		for _, node := range nodes {
			n, err := l.Redraw(ctx, node, &h, releaseLead)
			if err != nil {
				return false, err
			}
			if n > 0 {
				r.Logger.Warn("the clock of Redis was ahead and is back: drawing the times at a rate again",
					"namespace", h.Namespace.String(), "timers", n)
			}
		}
		delete(r.passes, h.Namespace)
		if err := l.Undraw(ctx, &h); err != nil {
			return false, err
		}
	}
	if h.Resume.At <= l.Now.Add(schedule.AheadBy) {
		return false, nil
	}
	resume := *h.Resume
	resume.At = l.Now
	h.Resume = &resume
	return true, l.Put(ctx, h)
}
