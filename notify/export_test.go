package notify

import (
	"time"

	"github.com/timerd-io/timerd/internal/lanes"
)

// TakeForSlow makes the Publisher publish all gathered events in batches, as long as it stays connected, also right
// after a failed batch.
func (p *Publisher) TakeForSlow() {
	g := p.flight.group
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pace, g.rest = slow{}, time.Time{}
}

// TakeForKnown has the Publisher publish without waiting for the answer to its first event.
func (p *Publisher) TakeForKnown() {
	g := p.flight.group
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pace = &pace{known: true}
}

// slow treats the stream as so slow that all events but one wait for each other.
type slow struct{}

func (slow) ackedAlone(int, bool, time.Duration, time.Time) {}
func (slow) batch(int, time.Duration, time.Time)            {}
func (slow) room(out int) int                               { return 1 - out }

func (slow) split(n, _ int, _ time.Time) (alone, together int) { return 0, n }

// TakesBatches reports whether the stream is known to take batches.
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
