package reconciler

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// The pauses between tries.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = 2 * time.Second
)

// unhealthyAfter is the time without a success after which failures count.
const unhealthyAfter = 3 * time.Second

// health records whether due timers can be found and claimed. Its methods may be called concurrently.
type health struct {
	mu     sync.Mutex
	scan   backoff.Outage
	claims map[keys.Partition]*backoff.Outage // partitions whose last claim failed
}

func newHealth() *health { return &health{claims: map[keys.Partition]*backoff.Outage{}} }

// noteScan notes the result of a sweep.
func (h *health) noteScan(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.scan.Note(err)
}

// noteClaim notes the result of a claim from a partition. A moving slot proves nothing.
func (h *health) noteClaim(p keys.Partition, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	failing, known := h.claims[p]
	switch {
	case err == nil:
		delete(h.claims, p)
	case schedule.IsMoving(err):
	case known:
		failing.Note(err)
	default:
		failing = &backoff.Outage{}
		failing.Note(err)
		h.claims[p] = failing
	}
}

// err returns the operations that have failed for some seconds. It ignores partitions that the server no longer has.
func (h *health) err(server Server) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.scan.Err(unhealthyAfter); err != nil {
		return fmt.Errorf("looking for due timers has been %w", err)
	}
	var first error
	partitions := 0
	for p, failing := range h.claims {
		if !server.Owns(p) {
			delete(h.claims, p)
		} else if err := failing.Err(unhealthyAfter); err != nil {
			first = err
			partitions++
		}
	}
	switch {
	case partitions > 1:
		return fmt.Errorf("claiming due timers has failed in %d slots, in one of them it has been %w", partitions,
			first)
	case partitions == 1:
		return fmt.Errorf("claiming due timers has been %w", first)
	}
	return nil
}

// newBackoff returns the back-off of a loop.
func newBackoff(log *slog.Logger) backoff.Backoff {
	return backoff.Backoff{Policy: backoff.Policy{First: firstPause, Longest: longestPause}, Logger: log}
}
