package checker

import (
	"cmp"
	"slices"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/torture/internal/history"
)

// lands is how long after its connection broke, in ms, an operation may still take
// effect, because it waited in a queue of the server.
const lands = 10_000

// expires is how long, in ms, Redis may take to delete a key that ran out, and timerd to hear of it: it has few keys.
const expires = 5000

// force says how a firing is judged.
type force int

const (
	may     force = iota // it may come or not
	must                 // it has to come, exactly once
	mustNot              // it must not come
)

// firing is one firing that the operations on a key ask for, or had asked for. Its due
// time is known exactly, or between two ms; a shift leaves several such times, if it perhaps was made.
type firing struct {
	op      history.Op // that asked for it
	dues    []window   // in one of which it is due
	from    int64      // first and last ms of all these
	to      int64
	payload string
	status  string // why there is no payload
	attempt int
	origin  string // the id of its timer's first event; "" if it is that
	force   force
	why     string // it must not come, or need not
	dead    bool   // a dead letter
	somehow bool   // it has to come, if not as it is: without its payload
	late    int64  // how late it may be claimed, in ms; 0: however late
	drop    bool   // later than that it is forgotten
	freed   int64  // when it may have been cancelled though it was due, 0 if not
	held    *hold  // that held it for certain until its end, the last one
	was     int64  // when it was due before held shifted it, 0 if that is not exact
	buried  []*hold
	mustDie bool // it has to be a dead letter because of one of buried; else it may be
	seen    []history.Message
}

// newFiring returns the firing that an operation asks for, due at a time from one ms to another.
func newFiring(op history.Op, from, to int64, force force) *firing {
	f := &firing{op: op, payload: op.Payload, status: op.Status, attempt: max(op.Attempt, 1), force: force, late: op.Late, drop: op.Drop}
	f.setDues(window{from, to})
	return f
}

// mostDues is how many due times of a firing are told apart. Each resume that may have shifted it doubles them.
const mostDues = 32

func (f *firing) setDues(all ...window) {
	for gap := int64(0); len(all) > mostDues; gap = 2*gap + 1 {
		all = joined(all, gap)
	}
	f.dues, f.from, f.to = all, all[0].from, all[0].to
	for _, d := range all {
		f.from, f.to = min(f.from, d.from), max(f.to, d.to)
	}
}

// joined returns windows in their order, where those that overlap, or are no further apart than a gap in ms, are one.
func joined(all []window, gap int64) []window {
	all = slices.SortedFunc(slices.Values(all), func(a, b window) int { return cmp.Compare(a.from, b.from) })
	n := 0
	for _, w := range all[1:] {
		if w.from <= all[n].to+gap {
			all[n].to = max(all[n].to, w.to)
		} else {
			n++
			all[n] = w
		}
	}
	return all[:n+1]
}

func (f *firing) matches(m history.Message) bool {
	// A firing whose id would be another's moves by a ms.
	return f.isOf(m) && m.Status == f.status && m.Payload == f.payload && m.Attempt == f.attempt &&
		(m.Stream == history.DeadStream || m.Origin == f.origin)
}

// isOf tells whether a message comes as a firing does, and when it is due.
func (f *firing) isOf(m history.Message) bool {
	return f.dead == (m.Stream == history.DeadStream && !inPlace(m)) && f.isDue(m.Due, 2)
}

// cameApartFrom reports whether a firing came at another of the times at which it may have been due than a message's.
func (f *firing) cameApartFrom(m history.Message) bool {
	return len(f.seen) > 0 && !slices.ContainsFunc(f.seen, func(seen history.Message) bool { return max(seen.Due-m.Due, m.Due-seen.Due) <= 2 })
}

// isDue tells whether a firing is due at a time, give or take some ms.
func (f *firing) isDue(at, about int64) bool {
	return slices.ContainsFunc(f.dues, func(d window) bool { return d.from-about <= at && at <= d.to+about })
}

// free makes a firing one that may come or not.
func (f *firing) free(why string) { f.force, f.why, f.somehow = may, why, false }

// forbid makes a firing one that must not come.
func (f *firing) forbid(why string) { f.force, f.why, f.somehow = mustNot, why, false }

// ranOut tells whether a message may be of a firing of which timerd knows no more than that the key ran out.
func (f *firing) ranOut(m history.Message) bool {
	return m.Stream == history.FiredStream && m.Status == event.StatusMissing && f.mayRunOut(m.Due)
}

// mayRunOut tells whether a due time may be when timerd heard that the key ran out.
func (f *firing) mayRunOut(due int64) bool { return f.from-2 <= due && due <= f.from+expires }
