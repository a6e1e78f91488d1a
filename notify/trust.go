package notify

import (
	"time"

	"github.com/timerd-io/timerd/schedule"
)

const (
	// maxSubjects is of how many subjects something is remembered at most, besides those with deliveries.
	maxSubjects = 10_000
	// untrustedShare is the part of the window, of firings and of bytes, that subjects without trust may fill together;
	// failingShare is up to which part another one may be on a failing subject.
	untrustedShare = 2
	failingShare   = 4

	// How long a firing that was given back because of its subject is left alone: the part of the time that it has been
	// due, between two bounds. The lower one is less for a subject of which nothing is known yet.
	pausePart      = 4
	failingPause   = time.Second
	untrustedPause = 500 * time.Millisecond
	maxPause       = time.Minute
)

// trust says how much of the window the firings of each subject may fill. One subject that NATS refuses, by a missing
// right for example, must not hold up the others: what is refused on the sly is noticed only when no answer comes.
//
//   - A subject is trusted once an event on it was acknowledged, and may fill the window.
//   - One that nothing is known of may fill half of it, together with all others without trust; the whole of it while
//     no subject is trusted yet.
//   - One is failing if an event on it was not acknowledged in time, nor any other on it meanwhile, though events on
//     others were. Then one firing at a time tries it, as long as those without trust fill no more than a quarter of the
//     window, and the rest are given back.
//
// Publisher.mu guards it.
type trust struct {
	subjects  map[string]*subjectTrust
	untrusted load // of subjects without trust
	trusted   int  // subjects
}

// load is how much of the window some deliveries fill.
type load struct{ deliveries, bytes int }

func (l *load) add(m load)      { l.deliveries, l.bytes = l.deliveries+m.deliveries, l.bytes+m.bytes }
func (l *load) subtract(m load) { l.deliveries, l.bytes = l.deliveries-m.deliveries, l.bytes-m.bytes }

// fits tells whether l is less than a part of a window.
func (l *load) fits(window load, part int) bool {
	return l.deliveries < max(window.deliveries/part, 1) && l.bytes < max(window.bytes/part, 1)
}

type subjectTrust struct {
	load             load
	trusted, failing bool
	acked            time.Time // when an event on it was acknowledged last
}

func newTrust() trust { return trust{subjects: map[string]*subjectTrust{}} }

// of returns what is known of a subject.
func (t *trust) of(subject string) *subjectTrust {
	s := t.subjects[subject]
	if s == nil {
		s = &subjectTrust{}
		if len(t.subjects) >= maxSubjects {
			t.forget()
		}
		t.subjects[subject] = s
	}
	return s
}

// forget forgets half of the subjects without deliveries.
func (t *trust) forget() {
	left := maxSubjects / 2
	for name, s := range t.subjects { // in random order
		if s.load.deliveries == 0 && left > 0 {
			if s.trusted {
				t.trusted--
			}
			delete(t.subjects, name)
			left--
		}
	}
}

// admits tells whether another firing on a subject may enter a window of a size.
func (t *trust) admits(s *subjectTrust, window load) bool {
	switch {
	case s.trusted:
		return true
	case s.failing:
		return s.load.deliveries == 0 && (t.trusted == 0 || t.untrusted.fits(window, failingShare))
	}
	return t.trusted == 0 || t.untrusted.fits(window, untrustedShare)
}

// add counts a delivery with a payload of some bytes.
func (t *trust) add(s *subjectTrust, bytes int) {
	one := load{1, bytes}
	s.load.add(one)
	if !s.trusted {
		t.untrusted.add(one)
	}
}

// remove takes a delivery out of the count.
func (t *trust) remove(s *subjectTrust, bytes int) {
	one := load{1, bytes}
	s.load.subtract(one)
	if !s.trusted {
		t.untrusted.subtract(one)
	}
}

// succeed notes that an event was acknowledged at a time.
func (t *trust) succeed(s *subjectTrust, at time.Time) {
	if !s.trusted {
		t.untrusted.subtract(s.load)
		t.trusted++
	}
	s.trusted, s.failing, s.acked = true, false, at
}

// fail notes that an event failed though others were acknowledged. It tells whether that is news.
func (t *trust) fail(s *subjectTrust) bool {
	if s.trusted {
		t.untrusted.add(s.load)
		t.trusted--
	}
	news := !s.failing
	s.trusted, s.failing = false, true
	return news
}

// pause returns for how long nobody is to claim a firing that is given back because of its subject.
func (s *subjectTrust) pause(f *schedule.Firing) time.Duration {
	shortest := untrustedPause
	if s.failing {
		shortest = failingPause
	}
	return min(max(f.Now().Sub(f.Due.Time())/pausePart, shortest), maxPause)
}
