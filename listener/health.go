package listener

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
)

// unhealthyAfter is the time for which hints must fail to reach the schedule before Redis counts as unhealthy.
const unhealthyAfter = 3 * time.Second

// health records whether events flow, and whether their hints reach the schedule. Its methods may be called
// concurrently.
type health struct {
	mu      sync.Mutex
	flow    error          // the reason why events do not flow; nil while they do
	arrived time.Time      // sending time of the latest canary to arrive; zero before the first
	intake  backoff.Outage // of hints
}

func newHealth() *health { return &health{flow: errors.New("not subscribed yet")} }

// setFlow sets the reason why events do not flow; nil means that they flow.
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

// noteIntake notes the result of a call that passes hints to the schedule.
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
