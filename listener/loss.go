package listener

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// eventsLostError ends a session with lost or late events.
type eventsLostError struct {
	missing string        // the flags of the missing events
	timeout time.Duration // the time without them
	off     string        // the flags that were off in Redis; empty if all were on
}

func (e *eventsLostError) Error() string {
	if e.off == "" {
		return fmt.Sprintf(
			"keyspace events were lost or are late: none with the flags %s arrived for %s, though the flags "+
				"are on", e.missing, e.timeout)
	}
	return "keyspace events were lost: the flags " + e.off + " had been switched off; they are on again"
}

// reportLost logs missing events once, and switches on the flags that Redis lacks. If no flag was off it returns an
// *eventsLostError, because a new session makes up for the loss. Otherwise it returns the failure to switch them on.
func (c *canary) reportLost(ctx context.Context, overdue []string) error {
	missing := strings.Join(overdue, " ")
	if missing == c.reported.missing {
		return nil
	}
	c.reported.missing = missing
	if missing != "Ex" && !c.reported.incomplete { // expired events only help
		c.reported.incomplete = true
		c.coverage.SetComplete(false)
	}
	off, err := enableFlags(ctx, c.rdb)
	if err != nil {
		c.log.Warn("some keyspace events do not arrive",
			"missing", missing, "adoption_by_audit", c.reported.incomplete, "err", err)
		return err
	}
	return &eventsLostError{missing, c.timeout, off}
}
