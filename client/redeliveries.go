package client

import (
	"context"
	"sync"
	"time"
)

// maxSettled is the number of remembered settled events: more than can be on their way to this process a second time.
const maxSettled = 4096

// redeliveries has the events with a handler of this process, and recently settled ones. JetStream delivers them again
// if their ack deadline could not be extended, because the process or its connection stood still. So handlers do not
// see them twice.
type redeliveries struct {
	mu      sync.Mutex
	working map[place]struct{}
	settled map[place]struct{}
	order   []place // of settled, a ring once it is full
	next    int     // in order
}

// place identifies a message for good: a stream created again counts from 1.
type place struct {
	seq    uint64
	stored time.Time
}

// placeKey is the key of the event's place in a handler's context.
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

// begin notes that work on a message begins, unless it has begun before or has been settled.
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

// end notes that work on a message has ended, and whether it was settled.
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
