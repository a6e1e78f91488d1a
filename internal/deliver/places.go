package deliver

import (
	"sync"
	"time"
)

// standing is the last known state of a host.
type standing int

const (
	unknown   standing = iota // it was never called, or is forgotten
	failing                   // the last call failed, or took long
	healthy                   // the last call was answered within a slowShare of its timeout
	standings                 // how many there are
)

const (
	// Of all places, hosts whose last call failed may have a quarter, and these and unknown ones a half. Healthy ones
	// may die too, and leave the last eighth.
	failingShare  = 4
	unprovenShare = 2
	provedShare   = 8
	// scarceShare is the part of the places from which on they are scarce. Of the last lastShare a host may have but
	// freeShare of what is free, and leastShare in any case.
	scarceShare = 2
	lastShare   = 4
	freeShare   = 8
	leastShare  = 2
	// healthySlow is how many slow calls a healthy host may have while places are scarce: any call is slow now and
	// then.
	healthySlow = 2
)

// places are the calls that a process may have under way at a time. A host that does not answer takes no place that one
// needs that does, however many such hosts there are and whenever they are called:
//
//   - Hosts that are not known to be alive have half of the places at most, at all times, and of these those that failed
//     a half.
//   - Hosts that were alive may die together. The last eighth is for hosts that have answered since half of the places
//     were taken.
//   - Of the last quarter a host may have but a part of what is left.
//   - Once half of all places are with slow calls, a host that has such calls gets no more.
//
// The methods may be called concurrently.
type places struct {
	most int
	free bool // all calls are of one host: there is nobody to be fair to

	mu      sync.Mutex
	taken   int
	slow    int
	by      [standings]int
	crowded time.Time // since when half of all places are taken
}

// seat is a place that was taken.
type seat struct {
	places   *places
	standing standing
	slow     bool
}

// claim is the standing and the calls of a host that wants a place.
type claim struct {
	standing standing
	answered time.Time // when it was last healthy
	calls    int       // that it has under way
	slow     int       // of these
}

// take takes a place for a call, or says why the host may not have one now.
func (p *places) take(c claim, now time.Time) (s *seat, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.free {
		if why := p.refuses(c); why != "" {
			return nil, why
		}
	}
	p.taken++
	p.by[c.standing]++
	if p.taken == p.most/scarceShare {
		p.crowded = now
	}
	return &seat{places: p, standing: c.standing}, ""
}

// refuses says why a host may not have one more place, "" if it may.
func (p *places) refuses(c claim) string {
	unproven := p.by[unknown] + p.by[failing]
	switch left := p.most - p.taken; {
	case left <= 0:
		return "waits for a place"
	case c.standing == failing && p.by[failing] >= max(p.most/failingShare, 1):
		return "failed before"
	case c.standing != healthy && unproven >= max(p.most/unprovenShare, 1):
		return "has not answered before"
	case p.taken < p.most/scarceShare:
		return ""
	case p.slow >= p.most/scarceShare && (c.slow >= healthySlow || c.slow > 0 && c.standing != healthy || c.standing == failing && c.calls > 0):
		return "is slow"
	case left <= p.most/provedShare && !c.answered.After(p.crowded):
		return "has not answered lately"
	case left <= p.most/lastShare && c.calls >= max(left/freeShare, leastShare):
		return "has its share of places"
	}
	return ""
}

// scarce reports whether a refused call should wait for long.
func (p *places) scarce() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken >= p.most/scarceShare
}

// slowCalls returns the number of slow calls.
func (p *places) slowCalls() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.slow
}

// noteSlow notes that the call of a seat has become slow.
func (s *seat) noteSlow() {
	s.places.mu.Lock()
	defer s.places.mu.Unlock()
	s.slow = true
	s.places.slow++
}

// leave gives the place back.
func (s *seat) leave() {
	p := s.places
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	p.by[s.standing]--
	if s.slow {
		p.slow--
	}
}
