package backoff

import (
	"fmt"
	"time"
)

// Outage remembers since when something has been failing without a success. The zero value is ready. It is for one
// goroutine at a time.
type Outage struct {
	since time.Time
	err   error // of the last failure; nil after a success
}

// Note notes the result of a try: nil is a success.
func (o *Outage) Note(err error) {
	if err != nil && o.err == nil {
		o.since = time.Now()
	}
	o.err = err
}

// Err returns nil unless the failures have lasted for atLeast; otherwise an error with their duration, and the last
// failure.
func (o *Outage) Err(atLeast time.Duration) error {
	lasted := time.Since(o.since)
	if o.err == nil || lasted < atLeast {
		return nil
	}
	return fmt.Errorf("failing for %v: %w", lasted.Round(time.Second), o.err)
}
