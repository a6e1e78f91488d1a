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
	// takeoverPause is for how long nothing more comes before what was taken over is logged, and takeoverMost the longest that is
	// waited for that.
	takeoverPause = 2 * time.Second
	takeoverMost  = 30 * time.Second
)

// takeovers says in the log what this timerd has taken over: firings that were claimed before and not settled within their lease. Its
// methods may be called concurrently.
type takeovers struct {
	instance string
	log      *slog.Logger

	mu          sync.Mutex
	firings     int
	key         string    // of the first
	due         time.Time // the earliest
	first, last time.Time // when they were claimed, by the server's clock
	began, seen time.Time // when that was noted
}

// note looks for such firings in what was claimed.
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

// run logs it until ctx ends.
func (t *takeovers) run(ctx context.Context) {
	for backoff.Sleep(ctx, takeoverPause/2) {
		t.tell()
	}
	t.mu.Lock()
	t.seen = time.Time{} // no more comes
	t.mu.Unlock()
	t.tell()
}

// tell logs what was taken over, unless more may come.
func (t *takeovers) tell() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.firings == 0 || time.Since(t.seen) < takeoverPause && time.Since(t.began) < takeoverMost {
		return
	}
	t.log.Warn("took over firings that were claimed before and not settled within their lease: a timerd died, stood still, or could not publish",
		"instance", t.instance, "firings", t.firings, "key", t.key, "due_at", t.due.UTC().Format(time.RFC3339Nano),
		"from", t.first.UTC().Format(time.RFC3339Nano), "until", t.last.UTC().Format(time.RFC3339Nano))
	t.firings = 0
}
