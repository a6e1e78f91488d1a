package client

import (
	"context"
	"sync"
	"time"
)

// ledgerSize is how many settled events are remembered: more than can be on their way to this process a second time.
const ledgerSize = 4096

// ledger knows the events that are with a handler of this process and those that were settled lately. JetStream
// delivers them again if their ack deadline could not be extended, because the process or its connection stood still.
// The ledger keeps handlers from seeing them twice.
type ledger struct {
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

// Sequence returns the place of a handler's event in its stream, by the handler's context. It is 0 for any other context.
func Sequence(ctx context.Context) uint64 {
	p, _ := ctx.Value(placeKey{}).(place)
	return p.seq
}

func newLedger() *ledger {
	return &ledger{working: make(map[place]struct{}), settled: make(map[place]struct{})}
}

// begin notes that a message is being worked on, unless it is already or has been settled.
func (l *ledger) begin(p place) (fresh, settled bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, settled = l.settled[p]; settled {
		return false, true
	}
	if _, working := l.working[p]; working {
		return false, false
	}
	l.working[p] = struct{}{}
	return true, false
}

// end notes that a message is no longer worked on, and whether it was settled.
func (l *ledger) end(p place, settled bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.working, p)
	if !settled {
		return
	}
	if len(l.order) < ledgerSize {
		l.order = append(l.order, p)
	} else {
		delete(l.settled, l.order[l.next])
		l.order[l.next] = p
		l.next = (l.next + 1) % ledgerSize
	}
	l.settled[p] = struct{}{}
}
