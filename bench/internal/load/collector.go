package load

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/timerd-io/timerd/bench/internal/firing"
)

// collector gathers the firings of a range of timers. It only counts other firings: they belong to an earlier workload,
// or to timers that are due much later.
type collector struct {
	mu      sync.Mutex
	first   int64
	seen    []bool
	missing int
	firings []firing.Firing // in the order of their reports, repeated ones too
	strays  int
	all     chan struct{} // closed once all have fired
}

func newCollector() *collector { return &collector{all: make(chan struct{})} }

// begin expects the n timers from first on, and drops earlier firings.
func (c *collector) begin(first int64, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.first, c.seen, c.missing, c.strays = first, make([]bool, n), n, 0
	c.firings = make([]firing.Firing, 0, n)
	c.all = make(chan struct{})
}

// fired adds a firing.
func (c *collector) fired(f firing.Firing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := f.N - c.first
	if i < 0 || i >= int64(len(c.seen)) {
		c.strays++
		return
	}
	c.firings = append(c.firings, f)
	if c.seen[i] {
		return
	}
	c.seen[i] = true
	if c.missing--; c.missing == 0 {
		close(c.all)
	}
}

// wait waits until every timer has fired, or until deadline.
func (c *collector) wait(ctx context.Context, deadline time.Time) error {
	c.mu.Lock()
	all := c.all
	c.mu.Unlock()
	timeout := time.NewTimer(time.Until(deadline))
	defer timeout.Stop()
	select {
	case <-all:
	case <-timeout.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// got returns the firings.
func (c *collector) got() []firing.Firing {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.firings)
}
