package retry

import (
	"context"
	"fmt"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// The ids of events whose retry was set more than rememberRetried ago are forgotten every trimEvery, and whenever
// trimAfter retries have been set.
const (
	trimEvery       = time.Minute
	trimAfter       = 500
	rememberRetried = 24 * time.Hour
)

// trim forgets old event ids now and then, until ctx ends. What fails is tried again soon, so that it is known when Redis is
// back.
func (c *Consumer) trim(ctx context.Context) {
	timer := time.NewTimer(trimEvery)
	defer timer.Stop()
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-c.trims:
		}
		began := time.Now()
		err := c.trimOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		c.note(partTrim, began, err)
		if err != nil {
			failures++
			timer.Reset(pause(failures))
		} else {
			failures = 0
			timer.Reset(trimEvery)
		}
	}
}

// trimOnce forgets ids of events whose retry was set more than a day ago. If requests wait in the stream, it counts the
// day back from when the oldest of them was stored, because they may ask for a retry that was set then.
func (c *Consumer) trimOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	stream, err := c.js.Stream(ctx, c.Streams.RetryStream())
	if err != nil {
		return fmt.Errorf("stream %s: %w", c.Streams.RetryStream(), err)
	}
	info, age := stream.CachedInfo(), rememberRetried
	if info.State.Msgs > 0 {
		age += max(info.TimeStamp.Sub(info.State.FirstTime), 0)
	}
	return c.retrier.TrimRetried(ctx, age)
}

// countSet counts a timer that was set again, and wakes trim so that old event ids are forgotten as fast as new ones come.
func (c *Consumer) countSet(key keys.Key, due schedule.Millis, postponed bool) {
	if c.set.Add(1)%trimAfter == 0 {
		select {
		case c.trims <- struct{}{}:
		default:
		}
	}
	c.Wake(key, due)
	if postponed {
		c.OnPostponed()
	} else {
		c.OnRetried()
	}
}
