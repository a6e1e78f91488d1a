package reconciler

import (
	"fmt"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// unhealthyAfter is for how long all tries must have failed to count.
const unhealthyAfter = 3 * time.Second

// health says whether what is due can be found and claimed. Reconciler.mu guards it.
type health struct {
	scan   backoff.Outage
	claims map[keys.Partition]*backoff.Outage // of the partitions whose last claim failed
}

func newHealth() health { return health{claims: map[keys.Partition]*backoff.Outage{}} }

// noteClaim takes in how a claim from a partition ended. That a slot is moving says nothing.
func (h *health) noteClaim(p keys.Partition, err error) {
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

// Healthy returns nil while timers are found and claimed as they become due, and otherwise what has failed for some
// seconds: looking for what is due, or every claim from a partition. It answers from memory.
func (r *Reconciler) Healthy() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.health.scan.Err(unhealthyAfter); err != nil {
		return fmt.Errorf("looking for due timers has been %w", err)
	}
	var first error
	partitions := 0
	for p, failing := range r.health.claims {
		if !r.node.Owns(p) {
			delete(r.health.claims, p)
		} else if err := failing.Err(unhealthyAfter); err != nil {
			first = err
			partitions++
		}
	}
	switch {
	case partitions > 1:
		return fmt.Errorf("claiming due timers has failed in %d slots, in one of them it has been %w", partitions, first)
	case partitions == 1:
		return fmt.Errorf("claiming due timers has been %w", first)
	}
	return nil
}
