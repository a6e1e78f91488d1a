package listener

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// eventsLostError ends a session in which events were lost, or came too late.
type eventsLostError struct {
	missing string        // the flags of the events that did not come
	timeout time.Duration // the time without them
	off     string        // the flags that were off in Redis; empty if all were on
}

func (e *eventsLostError) Error() string {
	if e.off == "" {
		return fmt.Sprintf("keyspace events were lost, or are late: those of %s did not arrive for %s, though their flags are on", e.missing, e.timeout)
	}
	return "keyspace events were lost: the flags " + e.off + " had been switched off; they are on again"
}

// reportLost logs once that events are missing, and switches on the flags that Redis lacks. If all are on then it
// returns an
// *eventsLostError, because a new session makes up for everything; otherwise it returns why.
func (c *canary) reportLost(ctx context.Context, overdue []string) error {
	missing := strings.Join(overdue, " ")
	if missing == c.reported.missing {
		return nil
	}
	c.reported.missing = missing
	if missing != "Ex" && !c.reported.incomplete { // expired is only a help
		c.reported.incomplete = true
		c.coverage.SetComplete(false)
	}
	off, err := enableFlags(ctx, c.rdb)
	if err != nil {
		c.log.Warn("some keyspace events do not arrive", "missing", missing, "adoption_by_audit", c.reported.incomplete, "err", err)
		return err
	}
	return &eventsLostError{missing, c.timeout, off}
}
