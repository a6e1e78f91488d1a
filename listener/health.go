package listener

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
)

// unhealthyAfter is for how long Redis must have taken in no hints to count.
const unhealthyAfter = 3 * time.Second

// health says whether events flow and are taken in. Its methods may be called concurrently.
type health struct {
	mu    sync.Mutex
	flow  error          // why events do not flow; nil while they do
	shown time.Time      // when the last canary was sent that has arrived; zero before
	takes backoff.Outage // whether Redis takes hints in
}

func newHealth() *health { return &health{flow: errors.New("not subscribed yet")} }

// setFlow notes why events do not flow, or that they do.
func (h *health) setFlow(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.flow = err
}

// show notes that a canary has arrived that was sent at a time.
func (h *health) show(at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if at.After(h.shown) {
		h.shown = at
	}
}

// lastShown returns when the last canary was sent that has arrived.
func (h *health) lastShown() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.shown
}

// noteIntake notes how an attempt to have hints taken in ended.
func (h *health) noteIntake(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.takes.Note(err)
}

// err returns what is wrong.
func (h *health) err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.flow != nil {
		return h.flow
	}
	if err := h.takes.Err(unhealthyAfter); err != nil {
		return fmt.Errorf("processing keyspace events has been %w", err)
	}
	return nil
}
