// Package lanes shares a window of simultaneous tries among lanes. Tries that fail together share a lane: for a subject
// refused by NATS, a moving slot of a Redis Cluster, a silent server. A failure in one lane delays no other lane.
package lanes

import (
	"sync"
	"time"
)

const (
	// maxLanes limits the remembered lanes without tries.
	maxLanes = 20_000
	// failingShare is the part of the window that tries of failing lanes may fill.
	failingShare = 4
)

// Load is the part of a window filled by some tries.
type Load struct{ Tries, Bytes int }

func (l *Load) add(m Load)      { l.Tries, l.Bytes = l.Tries+m.Tries, l.Bytes+m.Bytes }
func (l *Load) subtract(m Load) { l.Tries, l.Bytes = l.Tries-m.Tries, l.Bytes-m.Bytes }

// Fits reports whether l is less than a part of a window: half of it for part 2. A single try of any size fits.
func (l Load) Fits(window Load, part int) bool {
	return l.Tries < max(window.Tries/part, 1) && l.Bytes < max(window.Bytes/part, 1)
}

// Shares divides a window. A number n stands for the nth part of the window.
type Shares struct {
	// Unknown is the part for all tries in untrusted lanes together.
	Unknown int
	// Each is the part for the tries of each trusted lane.
	Each int
	// Alone lets unknown lanes fill the window as long as none is trusted.
	Alone bool
	// Stall is the time without an ending try after which a trusted lane with a full share answers like a failing one:
	// it works, but too slowly for its callers to come again soon. 0 means never.
	Stall time.Duration
}

// Window decides which tries may begin.
//
//   - A lane is trusted once a try in it has worked, and may fill the rest of the window, or its share of it.
//   - Unknown lanes may fill their share together.
//   - A lane is failing once a try in it has failed. Then it gets one try at a time, as long as untrusted lanes fill no
//     more than a quarter of the window.
//
// Its methods may be called concurrently.
type Window struct {
	shares Shares

	mu        sync.Mutex
	known     map[string]*Lane
	all       Load
	untrusted Load // of untrusted lanes
	trusted   int  // lanes
}

// Lane is one lane of a Window.
type Lane struct {
	load             Load
	trusted, failing bool
	worked           time.Time // time of its last success
	moved            time.Time // time of its last end of a try, or begin of a lone one; for trusted lanes with a Stall
}

// New returns an empty Window.
func New(shares Shares) *Window { return &Window{shares: shares, known: map[string]*Lane{}} }

// Answer is the permission for a try, or the reason of a refusal.
type Answer int

// The answers.
const (
	In      Answer = iota
	Crowded        // too many other tries
	Failing        // its lane fails or stalls and has one try already, or too many failing lanes have a try
)

// Enter begins a try in the named lane, if it may begin. size is the size of the window, and bytes is the size of the
// try. If Enter answers In, the caller must call Leave of the lane at the end of the try.
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

// Says is the meaning of a try's outcome for the lane.
type Says int

// The meanings of an outcome.
const (
	Nothing Says = iota
	Works
	Fails
)

// Leave ends an entered try. It reports whether the lane has begun to fail with it.
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

// Fail is Leave for a failed try that goes on, or is repeated. It counts as a failure only if no other try in its lane
// has succeeded since it began; with the zero time it counts in any case.
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

// Load returns the filled part of the window.
func (w *Window) Load() Load {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all
}

// Trusts reports whether the lane's last try with a meaning other than Nothing was a success.
func (w *Window) Trusts(l *Lane) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return l.trusted
}

// State is the state of a lane.
type State struct {
	Tries   int  // in the lane
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

// Restore ends the failure of the lane with that name, without a success in it.
func (w *Window) Restore(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.known[name]; l != nil {
		l.failing = false
	}
}

// forget forgets half of the lanes without tries, untrusted ones first.
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
