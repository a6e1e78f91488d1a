package notify

import (
	"sync"
	"time"
)

// streamRecord is what is known of the stream: for how long it remembers ids, and what it has acknowledged, to notice that it has
// lost some of it: by a power cut before it was written to disk, or because older files were put in its place. A stream's
// sequences only rise. So an event that is sent after another's acknowledgement has a higher one, and the stream's last is never
// below what was acknowledged. Its methods may be called concurrently.
type streamRecord struct {
	mu      sync.Mutex
	window  time.Duration // in which it drops duplicates; 0 before it is known
	created time.Time     // another time is another stream, which begins anew; zero before it is known
	top     sequence      // the highest that was acknowledged
	breach  *breach       // until it is known whether it is another stream
	below   int           // how many looks in a row have shown too low a sequence
}

// sequence is that of a message in the stream. Those before and after a breach do not compare: age counts the breaches.
type sequence struct {
	age int
	seq uint64
}

// breach is an event's sequence, or that of the next one, though a higher one had been acknowledged.
type breach struct{ seq, acknowledged uint64 }

// duplicates returns for how long the stream remembers ids: 0 before it is known.
func (r *streamRecord) duplicates() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.window
}

// highest returns the highest sequence that was acknowledged.
func (r *streamRecord) highest() sequence {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.top
}

// note takes the sequence of an event that was stored now, and the highest one that was acknowledged before the event was
// sent. It tells whether they contradict each other. Whether that is another stream is then to be found out.
func (r *streamRecord) note(after sequence, seq uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case after.age != r.top.age:
	case seq > after.seq:
		r.top.seq = max(r.top.seq, seq)
	default:
		r.breach = &breach{seq, r.top.seq}
		r.goOn(seq)
		return true
	}
	return false
}

// goOn has sequences count anew from one on. r.mu is held.
func (r *streamRecord) goOn(seq uint64) {
	r.top = sequence{r.top.age + 1, seq}
	r.below = 0
}

// compare takes what the stream says of itself: its duplicate window, when it was made, and its last sequence; and what was
// acknowledged before it was asked. It returns a breach that this proves, or nil. A server that has just become the leader may
// not know all that is stored: what is too low has to be so twice.
func (r *streamRecord) compare(window time.Duration, created time.Time, last uint64, acknowledged sequence) *breach {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.window = window
	var proven *breach
	switch {
	case !r.created.Equal(created):
		if !r.created.IsZero() {
			r.goOn(last)
		}
		r.created, r.breach = created, nil
	case acknowledged.age != r.top.age: // what is new, the next answer tells
	case r.breach != nil:
		proven, r.breach = r.breach, nil
	case last >= acknowledged.seq:
		r.below = 0
	case r.below == 0:
		r.below++
	default:
		proven = &breach{last + 1, acknowledged.seq}
		r.goOn(last)
	}
	return proven
}
