package backoff

import (
	"fmt"
	"time"
)

// Outage remembers since when something has failed, without a success in between. The zero value has seen no failure.
// It is for one goroutine at a time.
type Outage struct {
	since time.Time
	err   error // of the last failure; nil after a success
}

// Note takes in how a try ended: nil is a success.
func (o *Outage) Note(err error) {
	if err != nil && o.err == nil {
		o.since = time.Now()
	}
	o.err = err
}

// Err returns nil unless the failures have lasted for a time; then how long they have, and the last one.
func (o *Outage) Err(atLeast time.Duration) error {
	lasted := time.Since(o.since)
	if o.err == nil || lasted < atLeast {
		return nil
	}
	return fmt.Errorf("failing for %v: %w", lasted.Round(time.Second), o.err)
}
