package listener

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
)

// unhealthyAfter is the time without a hint taken in after which Redis counts as unhealthy.
const unhealthyAfter = 3 * time.Second

// health records whether events flow and are taken in. Its methods may be called concurrently.
type health struct {
	mu      sync.Mutex
	flow    error          // why events do not flow; nil while they do
	arrived time.Time      // sending time of the latest canary to arrive; zero before the first
	intake  backoff.Outage // of hints
}

func newHealth() *health { return &health{flow: errors.New("not subscribed yet")} }

// setFlow notes why events do not flow; nil: they do.
func (h *health) setFlow(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.flow = err
}

// noteArrival notes the arrival of a canary that was sent at a time.
func (h *health) noteArrival(at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if at.After(h.arrived) {
		h.arrived = at
	}
}

// lastArrival returns the sending time of the latest canary to arrive.
func (h *health) lastArrival() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.arrived
}

// noteIntake notes the outcome of a try to have hints taken in.
func (h *health) noteIntake(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.intake.Note(err)
}

// err returns the problem, or nil.
func (h *health) err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.flow != nil {
		return h.flow
	}
	if err := h.intake.Err(unhealthyAfter); err != nil {
		return fmt.Errorf("processing keyspace events has been %w", err)
	}
	return nil
}
