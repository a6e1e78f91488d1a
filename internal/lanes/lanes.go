// Package lanes shares a window, of tries that are under way at once, among lanes of those that fail together: a subject
// that NATS refuses, a slot of a Redis Cluster that is on the move, a server that does not answer.
// A failure in one lane delays no other lane.
package lanes

import (
	"sync"
	"time"
)

const (
	// maxLanes is how many lanes are remembered at most, besides those with tries.
	maxLanes = 20_000
	// failingShare is up to which part of the window another try may be in a failing lane.
	failingShare = 4
)

// Load is the part of a window that some tries fill.
type Load struct{ Tries, Bytes int }

func (l *Load) add(m Load)      { l.Tries, l.Bytes = l.Tries+m.Tries, l.Bytes+m.Bytes }
func (l *Load) subtract(m Load) { l.Tries, l.Bytes = l.Tries-m.Tries, l.Bytes-m.Bytes }

// Fits reports whether l is less than a part of a window: half of it for part 2. A single try fits, however large it is.
func (l Load) Fits(window Load, part int) bool {
	return l.Tries < max(window.Tries/part, 1) && l.Bytes < max(window.Bytes/part, 1)
}

// Shares says how a window is shared: each number n stands for the nth part of it.
type Shares struct {
	// Unknown is the part that tries in lanes without trust may fill together.
	Unknown int
	// Each is the part that tries in one trusted lane may fill.
	Each int
	// Alone says that lanes of which nothing is known may fill the window as long as none is trusted.
	Alone bool
	// Stall is for how long no try in a trusted lane that has its share may end before others are answered as if it failed:
	// it works, but so slowly that what waits for it should not come again soon. 0: however long.
	Stall time.Duration
}

// Window says which tries may begin.
//
//   - A lane is trusted once a try in it has worked, and may fill what is left of the window, or its share of it.
//   - Lanes that nothing is known of may fill their share together.
//   - One is failing if a try in it has failed. Then one try at a time may be in it, as long as those without trust fill
//     no more than a quarter of the window.
//
// The methods may be called concurrently.
type Window struct {
	shares Shares

	mu        sync.Mutex
	known     map[string]*Lane
	all       Load
	untrusted Load // of lanes without trust
	trusted   int  // lanes
}

// Lane is one lane of a Window.
type Lane struct {
	load             Load
	trusted, failing bool
	worked           time.Time // when a try in it has worked last
	moved            time.Time // when one has ended last, or has begun in it alone; of trusted lanes with a Stall
}

// New returns a Window that is empty.
func New(shares Shares) *Window { return &Window{shares: shares, known: map[string]*Lane{}} }

// Answer says whether a try may begin.
type Answer int

// The answers.
const (
	In      Answer = iota
	Crowded        // there are too many others
	Failing        // its lane fails or stalls, and has a try, or too many failing lanes have one
)

// Enter lets a try begin in the lane of that name, if it may. size is the window's, bytes is how large the try is. Each
// Enter that answers In must be followed by a Leave of the lane.
func (w *Window) Enter(name string, size Load, bytes int) (*Lane, Answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.known[name]
	if l == nil {
		l = &Lane{}
		if len(w.known) >= maxLanes {
			w.forget()
		}
		w.known[name] = l
	}
	alone := w.shares.Alone && w.trusted == 0
	switch {
	case !w.all.Fits(size, 1):
		return nil, Crowded
	case l.trusted:
		if !l.load.Fits(size, w.shares.Each) {
			if w.shares.Stall > 0 && time.Since(l.moved) > w.shares.Stall {
				return nil, Failing
			}
			return nil, Crowded
		}
	case l.failing:
		if l.load.Tries > 0 || !alone && !w.untrusted.Fits(size, max(failingShare, w.shares.Unknown)) {
			return nil, Failing
		}
	case !alone && !w.untrusted.Fits(size, w.shares.Unknown):
		return nil, Crowded
	}
	one := Load{1, bytes}
	if l.load.Tries == 0 && w.shares.Stall > 0 {
		l.moved = time.Now()
	}
	l.load.add(one)
	w.all.add(one)
	if !l.trusted {
		w.untrusted.add(one)
	}
	return l, In
}

// Says is the meaning of a try's outcome for its lane.
type Says int

// The meanings of an outcome.
const (
	Nothing Says = iota
	Works
	Fails
)

// Leave ends a try that has entered. It reports whether the lane has begun to fail with it.
func (w *Window) Leave(l *Lane, bytes int, says Says) (news bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one := Load{1, bytes}
	if w.shares.Stall > 0 {
		l.moved = time.Now()
	}
	l.load.subtract(one)
	w.all.subtract(one)
	if !l.trusted {
		w.untrusted.subtract(one)
	}
	switch says {
	case Works:
		if !l.trusted {
			w.untrusted.subtract(l.load)
			w.trusted++
		}
		l.trusted, l.failing, l.worked = true, false, time.Now()
	case Fails:
		news = w.fail(l)
	}
	return news
}

// Fail is Leave for a try that goes on, or is made again: it has failed, if no other in its lane has worked since it began. The
// zero time says that it has failed whatever others have.
func (w *Window) Fail(l *Lane, began time.Time) (news bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !began.IsZero() && l.worked.After(began) {
		return false
	}
	return w.fail(l)
}

func (w *Window) fail(l *Lane) (news bool) {
	if l.trusted {
		w.untrusted.add(l.load)
		w.trusted--
	}
	news = !l.failing
	l.trusted, l.failing = false, true
	return news
}

// Load returns how much of the window is filled.
func (w *Window) Load() Load {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all
}

// Trusts reports whether the last try of the lane with a meaning other than Nothing has worked.
func (w *Window) Trusts(l *Lane) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return l.trusted
}

// State is the state of a lane.
type State struct {
	Tries   int  // that are in it
	Failing bool // the lane fails
	Alone   bool // no lane at all is trusted
}

// State returns the state of the lane with that name.
func (w *Window) State(name string) State {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := State{Alone: w.trusted == 0}
	if l := w.known[name]; l != nil {
		s.Tries, s.Failing = l.load.Tries, l.failing
	}
	return s
}

// Restore ends the failure of the lane with that name, though no try in it has worked.
func (w *Window) Restore(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.known[name]; l != nil {
		l.failing = false
	}
}

// forget forgets half of the lanes without tries, those first that are not trusted.
func (w *Window) forget() {
	left := maxLanes / 2
	for _, trusted := range []bool{false, true} {
		for name, l := range w.known { // in random order
			if l.load.Tries == 0 && l.trusted == trusted && left > 0 {
				if trusted {
					w.trusted--
				}
				delete(w.known, name)
				left--
			}
		}
	}
}
