package deliver

import "time"

// The conditions that open a circuit, and for how long.
const (
	failuresInRow = 20  // failed calls in a row
	window        = 100 // or half of these calls failed
	firstOpen     = 30 * time.Second
	longestOpen   = 10 * time.Minute
)

// circuit judges a host by its calls. While it is open the host is not called; then one call, the probe, decides
// whether the circuit closes. The zero value is closed. It reads no clock, and is for one goroutine at a time.
type circuit struct {
	row      int // failed calls in a row
	outcomes [window]bool
	calls    int // number of outcomes, at most window
	next     int // place of the next outcome
	failed   int // failed ones among the outcomes

	length  time.Duration // the duration of the last opening; 0: closed
	until   time.Time     // time of the next probe
	probing bool
}

// open reports whether the circuit is open, also while the host may be probed.
func (c *circuit) open() bool { return c.length > 0 }

// admit reports whether the host may be called now. If not, wait is the time for which the circuit will stay as it is,
// as far as known. patience is the longest time that a probe may take.
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

// begin notes a call that was admitted, and reports whether it is the probe.
func (c *circuit) begin() (probe bool) {
	c.probing = c.open()
	return c.probing
}

// abandon notes that a call ended without a result for the host.
func (c *circuit) abandon(probe bool) {
	if probe {
		c.probing = false
	}
}

// end notes the end of a call. It reports whether the circuit changed: opened, opened for longer, or closed. While the
// circuit is open, only the probe changes it.
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
