package retry

import (
	"context"
	"errors"
	"time"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/keys"
)

// part is one of the things that a Consumer depends on, each with a fault of its own.
type part int

const (
	partConsumer part = iota
	partRedis
	partDead
	partAck
	partTrim
	parts
)

// fault is why a part does not work; the zero value says that it does.
type fault struct {
	err    error
	since  time.Time
	worked time.Time // when the last call that worked began
}

// note keeps whether a part works, by a call that began at the given time, and logs each change. A failure tells
// nothing if a later call has worked.
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

// tellFault logs that a part does not work. Requests do not wait for old ids to be forgotten.
func (c *Consumer) tellFault(part part, err error) {
	if part == partTrim {
		c.Logger.Warn("ids of old retries cannot be removed for now", "err", err)
		return
	}
	c.Logger.Warn("retry consumer is delayed, requests wait", "source", part.String(), "err", err)
}

// tellRecovery logs that a part works again, after how long.
func (c *Consumer) tellRecovery(part part, after time.Duration) {
	if part == partTrim {
		c.Logger.Info("ids of old retries are removed again", "after", after)
		return
	}
	c.Logger.Info("retry consumer works again", "source", part.String(), "after", after)
}

// String names what a part does, for the log.
func (p part) String() string {
	return [parts]string{
		partConsumer: "fetching requests",
		partRedis:    "setting timers in Redis",
		partDead:     "publishing dead letters",
		partAck:      "acknowledging requests",
	}[p]
}

// held tells whether nothing can be done for any request, because the only Redis there is does not answer.
func (c *Consumer) held() bool {
	return c.timersOn("").State(laneOfTimer(keys.Single)).Failing
}

// isRedisBack tells whether requests may be fetched. While fetching waits it asks Redis, by what is to be done now and
// then anyway: requests that are fetched only to be given back come later.
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

// lookForRest takes faults back that only a request could show to be over, if no request waits: somebody else has
// carried them out.
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

// fault returns what is wrong with the first of some parts that does not work.
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

// Healthy returns nil while retry requests are carried out as far as is known, and otherwise what does not work. It
// answers from memory and may be called at any time.
func (c *Consumer) Healthy() error {
	c.mu.Lock()
	state := c.state
	c.mu.Unlock()
	fault := c.fault(partConsumer, partRedis, partDead, partAck)
	switch {
	case state == stopped:
		return errors.New("the retry consumer has stopped")
	case fault == nil && state == starting:
		return errors.New("the retry consumer has no consumer in JetStream yet")
	}
	return fault
}
