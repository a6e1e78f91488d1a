package retry

import "time"

// Hasten divides the limits that a consumer waits for when something does not work. Call it before Run.
func (c *Consumer) Hasten(by int) {
	l, n := &c.limits, time.Duration(by)
	l.fetchHeartbeat, l.shortFetch, l.bindTimeout, l.callTimeout = l.fetchHeartbeat/n, l.shortFetch/n, l.bindTimeout/n,
		l.callTimeout/n
}
