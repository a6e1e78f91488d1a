package retry

import (
	"context"
	"fmt"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Ids of events whose retry was set more than rememberRetried ago are removed every trimEvery, and after each trimAfter
// retries.
const (
	trimEvery       = time.Minute
	trimAfter       = 500
	rememberRetried = 24 * time.Hour
)

// trim removes old event ids now and then, until ctx ends. It retries a failure soon, so that the return of Redis is
// noticed.
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

// trimOnce removes ids of events whose retry was set more than a day ago. If requests wait in the stream, the day
// counts back from the oldest one's stored time, because they may ask for a retry that was set then.
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

// countSet counts a timer that was set again, and wakes trim, so that old event ids go as fast as new ones come.
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
