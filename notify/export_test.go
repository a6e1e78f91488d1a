package notify

import (
	"time"

	"github.com/timerd-io/timerd/internal/lanes"
)

// TakeForSlow has the Publisher take its stream for one that takes a second to store an event by itself, as long as it stays
// connected: all that can be is published in batches then.
func (p *Publisher) TakeForSlow() {
	g := p.flight.group
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pace = pace{each: time.Second, at: time.Now().Add(time.Hour)}
}

// TakesBatches tells whether the stream is known to take batches.
func (p *Publisher) TakesBatches() bool {
	g := p.flight.group
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.allowed
}

// Trust has the Publisher trust a subject, as if an event on it had been acknowledged.
func (p *Publisher) Trust(subject string) {
	w := p.flight.subjects
	if lane, answer := w.Enter(subject, p.size(), 0); answer == lanes.In {
		w.Leave(lane, 0, lanes.Works)
	}
}
