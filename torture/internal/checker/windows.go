package checker

import (
	"cmp"
	"slices"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// hearTime is the time, in ms, in which a listening timerd acts on a keyspace event; after that the plain command
// counts as missed. It is generous, because a sync of the disk or a busy machine stops everything for a while.
const hearTime = 1500

// window is a time span from one ms to another, both included.
type window struct{ from, to int64 }

// hearing has the times at which timerds receive the keyspace events of one key.
type hearing struct {
	deaf      [][]window // by timerd, sorted, without overlaps
	failovers []window
	gone      []window // keys vanish, and their timers stay
	carried   []window // keys move to another server, and so become due later
	barred    []window // no timerd receives the events of the key's app, and no audit follows
}

// newHearing returns the hearing of all keys.
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

// deafen notes the effect of a fault on the timerds concerned.
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

// of returns the hearing of one key, by its app and its slot. A fault of some slots makes timerds deaf to these slots
// only, or delays them.
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

// listeners is the number of timerds that listen at the same time.
const listeners = 2

// never is later than any time.
const never int64 = 1<<63 - 1

// heard returns the time by which a timerd has certainly processed a plain command, by its event or by the audit after
// a deaf time. It returns never if the key may vanish before, or if timerd lacks the right to the event. The listening
// timerds are unknown, but of any group of timerds without one, at least one listens.
func (h *hearing) heard(at int64) int64 {
	times := make([]int64, len(h.deaf))
	for i, deaf := range h.deaf {
		from := at
		for _, w := range deaf {
			if w.from <= from+hearTime && from <= w.to {
				from = w.to + 1
			}
		}
		times[i] = from + hearTime
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

// heardAtOnce reports whether a timerd received the event of a plain command itself.
func (h *hearing) heardAtOnce(at int64) bool { return h.heard(at) == at+hearTime }

// failover reports whether a failover overlaps a time span.
func (h *hearing) failover(from, to int64) bool { return overlaps(h.failovers, from, to) }

// delayed returns the longest delay, in ms, of a key's due time by moves of the key to another server, between the
// times at which it was set and is due.
func (h *hearing) delayed(set, due int64) int64 {
	var most int64
	for _, w := range h.carried {
		if overlaps([]window{w}, set, due+most) {
			most += w.to - w.from
		}
	}
	return most
}

// expired reports whether timerds certainly receive the expired event of a key although they had no right to its
// earlier events. set and due are the key's times.
func (h *hearing) expired(set, due int64) bool {
	if !overlaps(h.barred, set, due) {
		return false
	}
	for _, deaf := range append(slices.Clone(h.deaf), h.gone, h.failovers) {
		if overlaps(deaf, set, due+expiryDelay) {
			return false
		}
	}
	return true
}

func overlaps(all []window, from, to int64) bool {
	return slices.ContainsFunc(all, func(w window) bool { return w.from <= to && from <= w.to })
}
