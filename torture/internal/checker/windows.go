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

// hearing tells when timerds hear keyspace events, of one key.
type hearing struct {
	deaf      [][]window // of each timerd, sorted, apart
	failovers []window
	gone      []window // in which keys go away whose timers stay
	carried   []window // in which keys are carried to another server, which makes them due later
	barred    []window // in which the events of the key's app say nothing to any timerd, and no audit comes after
}

// newHearing returns what is so for all keys.
func newHearing(h *history.History) *hearing {
	e := &hearing{deaf: make([][]window, h.Run.Timerds)}
	for _, f := range h.Faults {
		if len(f.Apps) > 0 || len(f.Slots) > 0 {
			continue
		}
		w := window{f.From, f.Hearing}
		switch f.Effect {
		case history.Failover:
			e.failovers = append(e.failovers, w)
		case history.KeysGo:
			e.gone = append(e.gone, window{f.From, f.Healed})
		case history.Carries:
			e.carried = append(e.carried, window{f.From, f.Healed})
		}
		e.deafen(f)
	}
	e.merge()
	return e
}

// deafen notes what a fault does to those timerds that it concerns.
func (h *hearing) deafen(f history.Fault) {
	for _, i := range f.Timerds {
		if f.Effect != history.Delays && i < len(h.deaf) {
			h.deaf[i] = append(h.deaf[i], window{f.From, f.Hearing})
		}
	}
}

func (h *hearing) merge() {
	for i := range h.deaf {
		h.deaf[i] = merge(h.deaf[i])
	}
}

// of returns what is so for one key: by its app, and by its slot. What concerns some slots makes timerds deaf to them and nothing else,
// or delays them.
func (h hearing) of(key string, faults []history.Fault) *hearing {
	copied := false
	for _, f := range faults {
		switch {
		case f.Effect == history.Deafens && slices.Contains(f.Apps, history.App(key)):
			h.barred = append(h.barred, window{f.From, f.Healed})
		case len(f.Slots) > 0 && concerns(f, key):
			if !copied {
				h.deaf, copied = deepClone(h.deaf), true
			}
			h.deafen(f)
		}
	}
	if copied {
		h.merge()
	}
	return &h
}

func deepClone(all [][]window) [][]window {
	out := make([][]window, len(all))
	for i, one := range all {
		out[i] = slices.Clone(one)
	}
	return out
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

// listeners is how many timerds hear at a time, of however many.
const listeners = 2

// never is later than all times.
const never int64 = 1<<63 - 1

// heard returns when a timerd has for certain taken in what a plain command at a time
// left behind, which an audit after a deaf time finds too; never, if the key may be gone
// before, or beyond timerd's rights. It is not known which timerds listen: one of those
// that do is among all but one of them.
func (h *hearing) heard(at int64) int64 {
	times := make([]int64, len(h.deaf))
	for i, deaf := range h.deaf {
		from := at
		for _, w := range deaf {
			if w.from <= from+hears && from <= w.to {
				from = w.to + 1
			}
		}
		times[i] = from + hears
	}
	slices.Sort(times)
	first := never
	if n := len(times); n > 0 {
		first = times[max(n-listeners, 0)]
	}
	if overlaps(h.gone, at, first) || overlaps(h.barred, at, first) {
		return never
	}
	return first
}

// heardAtOnce tells whether a timerd heard the very event of a plain command.
func (h *hearing) heardAtOnce(at int64) bool { return h.heard(at) == at+hears }

// failover tells whether one overlaps a time.
func (h *hearing) failover(from, to int64) bool { return overlaps(h.failovers, from, to) }

// delayed returns by how many ms at most a key, set at one time and due at another, is due later because it was carried to
// another server.
func (h *hearing) delayed(set, due int64) int64 {
	var most int64
	for _, w := range h.carried {
		if overlaps([]window{w}, set, due+most) {
			most += w.to - w.from
		}
	}
	return most
}

// expired tells whether timerds hear of a key, set at one time and due at another, for certain that it ran out, though they
// had no right to hear of it before.
func (h *hearing) expired(set, due int64) bool {
	if !overlaps(h.barred, set, due) {
		return false
	}
	for _, deaf := range append(slices.Clone(h.deaf), h.gone, h.failovers) {
		if overlaps(deaf, set, due+expires) {
			return false
		}
	}
	return true
}

func overlaps(all []window, from, to int64) bool {
	return slices.ContainsFunc(all, func(w window) bool { return w.from <= to && from <= w.to })
}
