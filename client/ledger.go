package client

import (
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// ledgerSize is how many settled events are remembered: more than can be on their
// way to this process a second time.
const ledgerSize = 4096

// ledger knows the events that are with a handler of this process, and those
// lately settled. JetStream delivers them again when their deadline could not be
// moved on, as while the process or its connection stood still; handlers need not
// see them twice.
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

func placeOf(msg *nats.Msg) (place, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return place{}, err
	}
	return place{seq: meta.Sequence.Stream, stored: meta.Timestamp}, nil
}

func newLedger() *ledger {
	return &ledger{working: make(map[place]struct{}), settled: make(map[place]struct{})}
}

// begin notes that a message is being worked on, unless it is already or has been
// settled.
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
