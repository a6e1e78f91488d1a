package deliver

import "time"

// When a circuit opens, and for how long.
const (
	failuresInRow = 20  // so many calls that failed one after the other
	window        = 100 // or half of so many
	firstOpen     = 30 * time.Second
	longestOpen   = 10 * time.Minute
)

// circuit judges a host by its calls. While it is open the host is not called; then one call, the probe, decides
// whether it closes. The zero value is closed. It reads no clock, and is for one goroutine at a time.
type circuit struct {
	row      int // calls that failed one after the other
	outcomes [window]bool
	calls    int // of the outcomes that count, at most window
	next     int // place of the next outcome
	failed   int // of the outcomes

	length  time.Duration // for how long it opened last; 0: it is closed
	until   time.Time     // when the host may be probed
	probing bool
}

// open tells whether the circuit is open, also while the host may be probed.
func (c *circuit) open() bool { return c.length > 0 }

// admit tells whether the host may be called now. Where it may not, wait is how long the circuit stays as it is, as
// far as can be told: patience is how long a probe may take.
func (c *circuit) admit(now time.Time, patience time.Duration) (wait time.Duration, ok bool) {
	switch {
	case !c.open():
		return 0, true
	case now.Before(c.until):
		return c.until.Sub(now), false
	case c.probing:
		return min(patience, c.length), false
	}
	return 0, true
}

// begin notes a call that was admitted, and tells whether it is the probe.
func (c *circuit) begin() (probe bool) {
	c.probing = c.open()
	return c.probing
}

// abandon notes that a call ended without telling anything about the host.
func (c *circuit) abandon(probe bool) {
	if probe {
		c.probing = false
	}
}

// end notes how a call ended. It tells whether the circuit changed: opened, opened for longer, or closed. What ends
// while it is open, other than the probe, changes nothing.
func (c *circuit) end(now time.Time, failed, probe bool) (changed bool) {
	switch {
	case probe && failed:
		c.probing = false
		c.trip(now, min(2*c.length, longestOpen))
		return true
	case probe:
		*c = circuit{}
		return true
	case c.open():
		return false
	}
	c.note(failed)
	if c.row < failuresInRow && (c.calls < window || 2*c.failed < window) {
		return false
	}
	*c = circuit{}
	c.trip(now, firstOpen)
	return true
}

func (c *circuit) trip(now time.Time, length time.Duration) {
	c.length, c.until = length, now.Add(length)
}

func (c *circuit) note(failed bool) {
	if c.calls == window && c.outcomes[c.next] {
		c.failed--
	}
	c.calls = min(c.calls+1, window)
	c.outcomes[c.next] = failed
	c.next = (c.next + 1) % window
	if !failed {
		c.row = 0
		return
	}
	c.failed++
	c.row++
}
