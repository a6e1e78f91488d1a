package holds

import (
	"errors"
	"fmt"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// ErrHeldAnew says that somebody has held the namespace anew while it was being resumed: what was not released by then stays held.
var ErrHeldAnew = errors.New("held anew meanwhile")

// A resume of what other holds cover too is kept in the list of holds: it applies once they end. Until the list changes there is
// nothing to be done for it.

// waits tells whether all that a resume has left to release is covered by other holds.
func (r *releaser) waits(l *schedule.HoldList, n keys.Namespace) bool {
	p := r.passes[n]
	return p != nil && p.waits && p.generation == l.Generation
}

// kept returns how many timers of a resume other holds keep, and which holds, if the resume only waits for these.
func (r *releaser) kept(l *schedule.HoldList, h *schedule.Hold) (timers int64, by []keys.Namespace) {
	if !r.waits(l, h.Namespace) {
		return 0, nil
	}
	for _, o := range l.Keeping(h) {
		by = append(by, o.Namespace)
	}
	return r.passes[h.Namespace].kept, by
}

// heldAnew returns the error of a resume that somebody else has ended.
func heldAnew(h *schedule.Hold, released int) error {
	return fmt.Errorf("%s was %w, by %s at %s: this command has released %d of its timers, the rest stays held",
		h.Namespace, ErrHeldAnew, h.By, h.Since.Time().Format("2006-01-02 15:04:05Z"), released)
}
