package checker

import (
	"cmp"
	"slices"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/torture/internal/history"
)

// effectDelay is the longest time, in ms, until an operation takes effect after its connection is lost: the server may
// have it in a queue.
const effectDelay = 10_000

// expiryDelay is the longest time, in ms, until Redis, which has few keys here, deletes an expired key and timerd
// receives the event.
const expiryDelay = 5000

// force says whether a firing is required, optional or forbidden.
type force int

const (
	may     force = iota // it may come or not
	must                 // it has to come, exactly once
	mustNot              // it must not come
)

// firing is one firing that operations on a key requested, now or earlier. Its due time is known exactly, or within a
// window. After an uncertain shift there are several windows.
type firing struct {
	op      history.Op // the request
	dues    []window   // it is due in one of them
	from    int64      // first and last ms of all these
	to      int64
	payload string
	status  string // the reason for a missing payload
	attempt int
	origin  string // the id of its timer's first event; "" for that event
	force   force
	why     string // the reason if it is forbidden or optional
	dead    bool   // a dead letter
	somehow bool   // required, at least without its payload
	late    int64  // limit on the lateness of its claim, in ms; 0: none
	drop    bool   // dropped if later
	guard   string // its guard: it fires unless, or only if, the key of timeline.guard is there; "" for none
	stopped bool   // its guard may have stopped it
	follows bool   // an occurrence that is armed once the one before is settled, perhaps after a hold has ended
	freed   int64  // time of a cancellation that may have found it due; 0 for none
	held    *hold  // the last hold that certainly held it until the hold's end
	was     int64  // its due time before held shifted it; 0 if not exactly known
	buried  []*hold
	mustDie bool // buried makes it a dead letter for certain, not perhaps
	seen    []history.Message
}

// newFiring returns the firing that an operation asks for, due at a time from one ms to another.
func newFiring(op history.Op, from, to int64, force force) *firing {
	f := &firing{op: op, payload: op.Payload, status: op.Status, attempt: max(op.Attempt, 1), force: force,
		late: op.Late, drop: op.Drop, guard: op.Guard}
	f.setDues(window{from, to})
	return f
}

// mostDues limits the possible due times of a firing. Each resume that may have shifted the firing doubles them.
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

// joined sorts windows, and joins the ones that overlap or have at most a gap, in ms, between them.
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
	// A firing moves by a ms to avoid another firing's id.
	return f.isOf(m) && m.Status == f.status && m.Payload == f.payload && m.Attempt == f.attempt &&
		(m.Stream == history.DeadStream || m.Origin == f.origin)
}

// isOf reports whether a message matches a firing in form and due time.
func (f *firing) isOf(m history.Message) bool {
	return f.dead == (m.Stream == history.DeadStream && !inPlace(m)) && f.isDue(m.Due, 2)
}

// cameApartFrom reports whether a firing has come with another of its possible due times than a message's.
func (f *firing) cameApartFrom(m history.Message) bool {
	return len(f.seen) > 0 && !slices.ContainsFunc(f.seen, func(seen history.Message) bool {
		return max(seen.Due-m.Due, m.Due-seen.Due) <= 2
	})
}

// isDue reports whether a firing is due at a time, give or take some ms.
func (f *firing) isDue(at, about int64) bool {
	return slices.ContainsFunc(f.dues, func(d window) bool { return d.from-about <= at && at <= d.to+about })
}

// free makes a firing optional.
func (f *firing) free(why string) { f.force, f.why, f.somehow = may, why, false }

// forbid makes a firing forbidden.
func (f *firing) forbid(why string) { f.force, f.why, f.somehow = mustNot, why, false }

// ranOut reports whether a message may be the event of a firing if timerd knows only that its key ran out.
func (f *firing) ranOut(m history.Message) bool {
	return m.Stream == history.FiredStream && m.Status == event.StatusMissing && f.mayRunOut(m.Due)
}

// mayRunOut reports whether due may be the time at which timerd received the expired event.
func (f *firing) mayRunOut(due int64) bool { return f.from-2 <= due && due <= f.from+expiryDelay }
