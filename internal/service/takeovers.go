package service

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// takeoverPause is the quiet time before a takeover is logged, and takeoverMost the longest wait for it.
	takeoverPause = 2 * time.Second
	takeoverMost  = 30 * time.Second
)

// takeovers logs takeovers: claims of firings that were claimed before and not settled within their lease. Its methods
// may be called concurrently.
type takeovers struct {
	instance string
	log      *slog.Logger

	mu          sync.Mutex
	firings     int
	key         string    // of the first
	due         time.Time // the earliest
	first, last time.Time // times of the claims, by the server's clock
	began, seen time.Time // local times of the notes
}

// note looks in a claim for firings that were claimed before and not settled within their lease.
func (t *takeovers) note(claimed *schedule.ClaimResult) {
	for i := range claimed.Firings {
		if claimed.Firings[i].Trigger == schedule.TriggerReclaim {
			t.add(claimed, i)
		}
	}
}

func (t *takeovers) add(claimed *schedule.ClaimResult, i int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := &claimed.Firings[i]
	now := time.Now()
	if t.firings == 0 {
		t.key, t.due, t.first, t.began = f.Key.String(), f.Due.Time(), claimed.At, now
	}
	t.firings++
	if due := f.Due.Time(); due.Before(t.due) {
		t.due = due
	}
	t.last, t.seen = claimed.At, now
}

// run logs takeovers until ctx ends.
func (t *takeovers) run(ctx context.Context) {
	for backoff.Sleep(ctx, takeoverPause/2) {
		t.tell()
	}
	t.mu.Lock()
	t.seen = time.Time{} // nothing more to wait for
	t.mu.Unlock()
	t.tell()
}

// tell logs a takeover, unless more of it may come.
func (t *takeovers) tell() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.firings == 0 || time.Since(t.seen) < takeoverPause && time.Since(t.began) < takeoverMost {
		return
	}
	t.log.Warn("took over firings that were claimed before and not settled within their lease: "+
		"a timerd died, stood still, or could not publish",
		"instance", t.instance, "firings", t.firings, "key", t.key, "due_at", t.due.UTC().Format(time.RFC3339Nano),
		"from", t.first.UTC().Format(time.RFC3339Nano), "until", t.last.UTC().Format(time.RFC3339Nano))
	t.firings = 0
}
