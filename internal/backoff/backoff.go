// Package backoff paces retries: the delays grow, differ from process to process, and are logged in one way.
package backoff

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

// repeatEvery is the interval of log lines about an unchanged failure.
const repeatEvery = time.Minute

// Policy gives the delay after failures in a row: First after the first one, then twice as long each time, up to
// Longest. Each delay is shortened by up to a fifth, at random, so that processes that failed together do not come back
// together.
type Policy struct {
	First, Longest time.Duration
}

// Delay returns the delay after that many failures in a row; 0 for none.
func (p Policy) Delay(failures int) time.Duration {
	if failures < 1 {
		return 0
	}
	delay := p.Longest
	if doublings := failures - 1; doublings < 32 && p.First<<doublings>>doublings == p.First {
		delay = min(p.First<<doublings, p.Longest)
	}
	return delay - rand.N(delay/5+1)
}

// Backoff counts the failures of one loop and logs them. Set Policy and Logger first. It is for one goroutine at a
// time.
type Backoff struct {
	Policy
	Logger *slog.Logger

	failures int
	since    time.Time // time of the first of these failures
	said     string    // the last error logged
	saidAt   time.Time
}

// Fail notes a failure and returns the delay before the next try. It logs message as a warning, with args, err, attempt
// and delay, if err has another text than the last time, or a minute has passed.
func (b *Backoff) Fail(message string, err error, args ...any) time.Duration {
	b.failures++
	if b.failures == 1 {
		b.since = time.Now()
	}
	delay := b.Delay(b.failures)
	if text := err.Error(); text != b.said || time.Since(b.saidAt) >= repeatEvery {
		b.said, b.saidAt = text, time.Now()
		args = append(args, "err", err, "attempt", b.failures, "delay", delay)
		b.Logger.Warn(message, args...) //nolint:sloglint // the caller's constant
	}
	return delay
}

// Succeed ends a row of failures. It returns the length of the row, or 0 if there was none.
func (b *Backoff) Succeed() time.Duration {
	if b.failures == 0 {
		return 0
	}
	b.failures, b.said = 0, ""
	return time.Since(b.since)
}

// Within reports whether c is closed before d is over.
func Within(d time.Duration, c <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c:
		return true
	case <-timer.C:
		return false
	}
}

// Sleep waits for d. It returns false if ctx ends before.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
