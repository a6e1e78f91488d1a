package history

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// logOpenTime and logLookTime bound a search's wait for a log: NATS does not answer a user without the right to
	// read it.
	logOpenTime = time.Second
	logLookTime = 2 * time.Second
	// logAwayTime is the pause before a silent log is asked again.
	logAwayTime = time.Minute
)

// step is a part of a search.
type step int

const (
	openStep step = iota
	lookStep
)

// within returns the time for the step in a log.
func (s step) within() time.Duration {
	if s == openStep {
		return logOpenTime
	}
	return logLookTime
}

// absence notes whether a log answers: the stream of the deliveries, or of the history. Its methods may be called
// concurrently.
type absence struct {
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

// do runs a step. If the cursor's stream is a log, the step takes a limited time, and a failure only marks the cursor
// as away, without an error.
func (c *cursor) do(ctx context.Context, which step, run func(context.Context) error) error {
	if c.log == nil {
		return run(ctx)
	}
	if c.away = c.log.reason(); c.away != nil {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, cmp.Or(c.logWait, which.within()))
	defer cancel()
	err := run(bounded)
	if err == nil || ctx.Err() != nil {
		return err
	}
	c.log.remember(err)
	c.away = err
	return nil
}
