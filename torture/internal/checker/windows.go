package checker

import (
	"cmp"
	"slices"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// hears is how long, in ms, a timerd that listens may take to act on a keyspace event
// before a plain command counts as unheard: generous, because a sync of the disk or a
// busy machine stops everything for a while.
const hears = 1500

// window is a time from one ms to another, both included.
type window struct{ from, to int64 }

// hearing tells when timerds hear keyspace events.
type hearing struct {
	deaf      [][]window // of each timerd, sorted, apart
	failovers []window
}

func newHearing(h *history.History) *hearing {
	e := &hearing{deaf: make([][]window, h.Run.Timerds)}
	for _, f := range h.Faults {
		w := window{f.From, f.Hearing}
		if f.Effect == history.Failover {
			e.failovers = append(e.failovers, w)
		}
		for _, i := range f.Timerds {
			if f.Effect != history.Delays && i < len(e.deaf) {
				e.deaf[i] = append(e.deaf[i], w)
			}
		}
	}
	for i := range e.deaf {
		e.deaf[i] = merge(e.deaf[i])
	}
	return e
}

func merge(all []window) []window {
	slices.SortFunc(all, func(a, b window) int { return cmp.Compare(a.from, b.from) })
	var out []window
	for _, w := range all {
		if n := len(out); n > 0 && w.from <= out[n-1].to {
			out[n-1].to = max(out[n-1].to, w.to)
		} else {
			out = append(out, w)
		}
	}
	return out
}

// heard returns when a timerd has for certain taken in what a plain command at a time
// left behind, which an audit after a deaf time finds too.
func (h *hearing) heard(at int64) int64 {
	var first int64 = 1<<63 - 1
	for _, deaf := range h.deaf {
		from := at
		for _, w := range deaf {
			if w.from <= from+hears && from <= w.to {
				from = w.to + 1
			}
		}
		first = min(first, from+hears)
	}
	return first
}

// heardAtOnce tells whether a timerd heard the very event of a plain command.
func (h *hearing) heardAtOnce(at int64) bool { return h.heard(at) == at+hears }

// failover tells whether one overlaps a time.
func (h *hearing) failover(from, to int64) bool {
	return slices.ContainsFunc(h.failovers, func(w window) bool { return w.from <= to && from <= w.to })
}
