package retry

import (
	"context"
	"errors"
	"time"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/keys"
)

// part is a dependency of a Consumer, with a fault of its own.
type part int

const (
	partConsumer part = iota
	partRedis
	partDead
	partAck
	partTrim
	parts
)

// fault is the reason why a part does not work; the zero value means that it works.
type fault struct {
	err    error
	since  time.Time
	worked time.Time // the beginning of the last successful call
}

// note sets whether a part works, from the result of a call that began at the given time, and logs each change. It
// ignores a failure if a later call succeeded.
func (c *Consumer) note(part part, began time.Time, err error) {
	err = diag.Plain(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	fault := &c.faults[part]
	switch {
	case err != nil && began.Before(fault.worked):
		return
	case err != nil && fault.err == nil:
		fault.since = time.Now()
		c.tellFault(part, err)
	case err == nil && fault.err != nil:
		c.tellRecovery(part, time.Since(fault.since).Round(time.Millisecond))
	}
	if fault.err = err; err == nil && began.After(fault.worked) {
		fault.worked = began
	}
}

// tellFault logs that a part does not work. If ids of old retries cannot be removed, requests do not wait.
func (c *Consumer) tellFault(part part, err error) {
	if part == partTrim {
		c.Logger.Warn("cannot remove the ids of old retries", "err", err)
		return
	}
	c.Logger.Warn("retry consumer is delayed, requests wait", "source", part.String(), "err", err)
}

// tellRecovery logs that a part works again, with the duration of the fault.
func (c *Consumer) tellRecovery(part part, after time.Duration) {
	if part == partTrim {
		c.Logger.Info("removing the ids of old retries works again", "after", after)
		return
	}
	c.Logger.Info("retry consumer works again", "source", part.String(), "after", after)
}

// String names the part's work, for the log.
func (p part) String() string {
	return [parts]string{
		partConsumer: "fetching requests",
		partRedis:    "setting timers in Redis",
		partDead:     "publishing dead letters",
		partAck:      "acknowledging requests",
	}[p]
}

// held reports whether no request can be carried out, because the only Redis does not answer.
func (c *Consumer) held() bool {
	return c.timersOn("").State(laneOfTimer(keys.Single)).Failing
}

// isRedisBack reports whether requests may be fetched. While fetching waits, it asks Redis with a trim, which is needed
// now and then anyway. Fetching requests just to give them back would delay them.
func (c *Consumer) isRedisBack(ctx context.Context) bool {
	if !c.held() {
		return true
	}
	began := time.Now()
	if err := c.trimOnce(ctx); err != nil {
		return false
	}
	c.timersOn("").Restore(laneOfTimer(keys.Single))
	c.note(partRedis, began, nil)
	c.note(partTrim, began, nil)
	return true
}

// lookForRest clears the faults that only a request could clear, if no request waits: others have carried them out.
func (c *Consumer) lookForRest(ctx context.Context) {
	if c.fault(partRedis, partDead, partAck) == nil {
		return
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	stream, err := c.js.Stream(ctx, c.Streams.RetryStream())
	if err == nil && stream.CachedInfo().State.Msgs == 0 {
		for _, part := range []part{partRedis, partDead, partAck} {
			c.note(part, began, nil)
		}
	}
}

// fault returns the fault of the first failing part.
func (c *Consumer) fault(parts ...part) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, part := range parts {
		if err := c.faults[part].err; err != nil {
			return err
		}
	}
	return nil
}

// Healthy returns nil while retry requests are carried out, as far as known, and otherwise the fault. It answers from
// memory and may be called at any time.
func (c *Consumer) Healthy() error {
	c.mu.Lock()
	state := c.state
	c.mu.Unlock()
	fault := c.fault(partConsumer, partRedis, partDead, partAck)
	switch {
	case state == stopped:
		return errors.New("the retry consumer has stopped")
	case fault == nil && state == starting:
		return errors.New("the retry consumer does not exist in JetStream yet")
	}
	return fault
}
