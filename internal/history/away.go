package history

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// logOpenTime and logLookTime bound how long a search of several streams waits for the log of deliveries, which not all
	// users may read: NATS does not answer what a user has no right to.
	logOpenTime = time.Second
	logLookTime = 2 * time.Second
	// logAwayTime is how long a log that did not answer is left alone.
	logAwayTime = time.Minute
)

// absence is whether the log of deliveries has answered. Its methods may be called concurrently.
type absence struct {
	openTime, lookTime time.Duration

	mu    sync.Mutex
	why   error
	until time.Time
}

// reason returns why the log is left alone now; nil if it is not.
func (a *absence) reason() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Now().Before(a.until) {
		return a.why
	}
	return nil
}

// remember has the log left alone for a while. An error that came at once costs nobody time, and is not remembered.
func (a *absence) remember(err error) {
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.why, a.until = err, time.Now().Add(logAwayTime)
}

// read has a step of a cursor done. Where the search can do without its stream, that takes so long at most, and a failure is
// no error: the cursor is away.
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
