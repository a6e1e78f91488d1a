package history

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// logOpenTime and logLookTime bound a search's wait for the log of deliveries: NATS does not answer a user without
	// the right to read it.
	logOpenTime = time.Second
	logLookTime = 2 * time.Second
	// logAwayTime is the pause before a silent log is asked again.
	logAwayTime = time.Minute
)

// absence notes whether the log of deliveries answers. Its methods may be called concurrently.
type absence struct {
	openTime, lookTime time.Duration

	mu    sync.Mutex
	why   error
	until time.Time
}

// reason returns the reason not to ask the log now; nil if it may be asked.
func (a *absence) reason() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Now().Before(a.until) {
		return a.why
	}
	return nil
}

// remember keeps the log from being asked for a while. An error that came at once cost no time, and is not remembered.
func (a *absence) remember(err error) {
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.why, a.until = err, time.Now().Add(logAwayTime)
}

// read runs a step of a cursor. If the cursor's stream is optional, the step takes at most the given time, and a
// failure only marks the cursor as away, without an error.
func (a *absence) read(ctx context.Context, c *cursor, most time.Duration, step func(context.Context) error) error {
	if !c.optional {
		return step(ctx)
	}
	if c.away = a.reason(); c.away != nil {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	err := step(bounded)
	if err == nil || ctx.Err() != nil {
		return err
	}
	a.remember(err)
	c.away = err
	return nil
}
