package checker

import (
	"github.com/timerd-io/timerd/torture/internal/history"
)

// guard is the history of a key that guards timers. Outside the windows nobody knows whether it was there.
type guard struct{ there, gone []window }

// blur is the error, in ms, of the times at which a guard changes: Redis's clock has been read before and after.
const blur = 5

// newGuard returns the history of a guard by the operations on it. It is gone at first.
func newGuard(ops []history.Op, h *hearing) guard {
	var g guard
	gone, since := true, int64(0) // of the last change; gone ends at its expiry too
	expires := window{never, never}
	// until closes the known time since the last change.
	until := func(at int64) {
		switch {
		case gone:
			g.gone = append(g.gone, window{since, at})
		case expires.from < at:
			g.there = append(g.there, window{since, expires.from})
			g.gone = append(g.gone, window{expires.to, at})
		default:
			g.there = append(g.there, window{since, at})
		}
	}
	for _, op := range ops {
		if op.Outcome == history.Failed {
			continue
		}
		until(op.Invoked - blur)
		if op.Outcome == history.Unknown || overlaps(h.gone, op.Invoked, op.Ended) {
			return g
		}
		gone, since, expires = op.Kind == history.DelGuard, op.After+blur, window{never, never}
		if op.Due == 0 {
			continue
		}
		expires = window{op.Due - blur, op.Due + h.delayed(op.Before, op.Due) + blur}
		for _, w := range h.gone { // Redis may have dropped it before
			if w.from <= expires.from && op.After <= w.to {
				expires.from = min(expires.from, w.from-blur)
			}
		}
	}
	until(never)
	return g
}

// stops reports whether a guard certainly forbade each claim in a window.
func (g guard) stops(kind string, all window) bool {
	return kind == history.Unless && within(g.there, all) || kind == history.If && within(g.gone, all)
}

// allows reports whether a guard certainly allowed each claim in a window.
func (g guard) allows(kind string, all window) bool {
	return kind == "" || kind == history.Unless && within(g.gone, all) || kind == history.If && within(g.there, all)
}

func within(known []window, all window) bool {
	for _, w := range known {
		if w.from <= all.from && all.to <= w.to {
			return true
		}
	}
	return false
}

// claimed returns the window in which a firing was certainly claimed for the last time, and so judged by its guard: a
// short one if nothing disturbed it.
func (j *judge) claimed(key string, f *firing) window {
	by := f.to + innocentMost + 1 + j.stalled(f.to, f.to+2*innocentMost) + storing*j.stored(f.to, f.to+2*innocentMost)
	if !j.calm(key, f.op.Invoked, by) || j.without(f.to, by) <= innocentMost {
		by = never
	}
	return window{f.from - blur, by}
}

// mayBeGuarded reports whether a guard may have ended a firing.
func (j *judge) mayBeGuarded(key string, t *timeline, f *firing) bool {
	return f.guard != "" && !f.dead && !t.guard.allows(f.guard, j.claimed(key, f))
}
