package deliver

import (
	"sync"
	"time"
)

// standing is the last known state of a host.
type standing int

const (
	unknown   standing = iota // never called, or forgotten
	failing                   // the last call failed, or took long
	healthy                   // the last call was answered within a slowShare of its timeout
	standings                 // the number of standings
)

const (
	// Shares of all places: hosts whose last call failed get at most a quarter, and these with unknown hosts a half.
	// Healthy hosts may die too, so they leave the last eighth.
	failingShare  = 4
	unprovenShare = 2
	provedShare   = 8
	// scarceShare is the part of the places beyond which they are scarce. In the last lastShare a host gets only
	// freeShare of the free places, but always leastShare.
	scarceShare = 2
	lastShare   = 4
	freeShare   = 8
	leastShare  = 2
	// healthySlow is the number of slow calls that a healthy host may have while places are scarce: any call is slow
	// now and then.
	healthySlow = 2
)

// places are the simultaneous calls of a process. Silent hosts never take a place that an answering host needs, however
// many silent hosts there are and whenever they are called:
//
//   - Hosts not known to be alive always have at most half of the places, and failed ones a half of these.
//   - Living hosts may die together. The last eighth is for hosts that answered after half of the places were taken.
//   - In the last quarter a host gets only a part of the free places.
//   - Once slow calls take half of all places, a host with slow calls gets no more.
//
// Its methods may be called concurrently.
type places struct {
	most int
	free bool // all calls go to one host: no fairness is needed

	mu      sync.Mutex
	taken   int
	slow    int
	by      [standings]int
	crowded time.Time // since when half of all places are taken
}

// seat is a taken place.
type seat struct {
	places   *places
	standing standing
	slow     bool
}

// claim has the standing and the calls of a host that needs a place.
type claim struct {
	standing standing
	answered time.Time // time of the last healthy answer
	calls    int       // running
	slow     int       // slow ones among them
}

// take takes a place for a call, or returns the reason why the host may not have one now.
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

// refuses returns the reason why a host may not have one more place, "" if it may have one.
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
	case p.slow >= p.most/scarceShare && (c.slow >= healthySlow || c.slow > 0 && c.standing != healthy ||
		c.standing == failing && c.calls > 0):
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
