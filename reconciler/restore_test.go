package reconciler

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// halves is a Restorer.
type halves struct {
	*bench
	restored schedule.Restored
	once     bool // the second call finds nothing to restore
	err      error
}

func (h *halves) Restore(context.Context, keys.Partition, time.Duration) (schedule.Restored, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.note("restore")
	restored := h.restored
	if h.once {
		h.restored = schedule.Restored{}
	}
	return restored, h.err
}

// Timers missing in two consecutive sweeps are restored and reported once, and an audit follows. If they stay missing,
// the restore is repeated after some time. Records of a later version are no loss.
func TestMissingTimersAreRestored(t *testing.T) {
	t.Parallel()
	loop(t, func(t *testing.T, b *bench, start func(func(context.Context)) func()) {
		h, cover := &halves{bench: b, restored: schedule.Restored{Timers: 3}}, newCoverage(b.Now)
		r := restorer{
			node: h, agenda: newAgenda(b), coverage: cover, log: b.logger(), torn: make(chan []schedule.Torn, 1),
			metrics: counted{vanished: func(n int64) { b.change(func() { b.note(fmt.Sprint(n, " missing")) }) }},
		}
		defer start(r.run)()
		torn := []schedule.Torn{{Partition: keys.Single, Missing: 3}}
		r.noteTorn(torn)
		r.noteTorn(nil)
		r.noteTorn(torn)
		b.saw(t, time.Second)
		r.noteTorn(torn)
		b.saw(t, time.Second, "1s restore", "1s 3 missing")
		if reason := <-cover.asked; reason != reasonVanished {
			t.Errorf("an audit for %q", reason)
		}
		b.change(func() { h.err = errors.New("away") })
		for range restoreEach - tornSweeps - 1 {
			r.noteTorn(torn)
		}
		b.saw(t, time.Second)
		r.noteTorn(torn)
		b.saw(t, time.Second, "3s restore", "3s 3 missing")
		b.change(func() { h.restored, h.err = schedule.Restored{Unknown: 3}, nil })
		for range restoreEach {
			r.noteTorn(torn)
		}
		b.saw(t, time.Second, "4s restore")
		for range 2 * restoreEach {
			r.noteTorn(torn)
		}
		b.saw(t, time.Second)
	})
}
