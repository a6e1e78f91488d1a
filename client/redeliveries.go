package client

import (
	"context"
	"sync"
	"time"
)

// maxSettled is how many settled events are remembered: more than can be on their way to this process a second time.
const maxSettled = 4096

// redeliveries knows the events that are with a handler of this process and those that were settled lately. JetStream
// delivers them again if their ack deadline could not be extended, because the process or its connection stood still.
// It keeps handlers from seeing them twice.
type redeliveries struct {
	mu      sync.Mutex
	working map[place]struct{}
	settled map[place]struct{}
	order   []place // of settled, a ring once it is full
	next    int     // in order
}

// place names a message for good: a stream that is made anew counts from 1 again.
type place struct {
	seq    uint64
	stored time.Time
}

// placeKey is under which a handler's context has the place of its event.
type placeKey struct{}

// Sequence returns the stream sequence number of a handler's event. ctx is the handler's context; for any other one
// Sequence returns 0.
func Sequence(ctx context.Context) uint64 {
	p, _ := ctx.Value(placeKey{}).(place)
	return p.seq
}

func newRedeliveries() *redeliveries {
	return &redeliveries{working: make(map[place]struct{}), settled: make(map[place]struct{})}
}

// begin notes that a message is being worked on, unless it is already or has been settled.
func (r *redeliveries) begin(p place) (fresh, settled bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, settled = r.settled[p]; settled {
		return false, true
	}
	if _, working := r.working[p]; working {
		return false, false
	}
	r.working[p] = struct{}{}
	return true, false
}

// end notes that a message is no longer worked on, and whether it was settled.
func (r *redeliveries) end(p place, settled bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.working, p)
	if !settled {
		return
	}
	if len(r.order) < maxSettled {
		r.order = append(r.order, p)
	} else {
		delete(r.settled, r.order[r.next])
		r.order[r.next] = p
		r.next = (r.next + 1) % maxSettled
	}
	r.settled[p] = struct{}{}
}
