package cron

import "time"

// horizon is the number of years searched. In eight years February has 29 days at least once, or once more at the end.
const horizon = 8

// lastSecond is the end of the year 9999. There is nothing later.
const lastSecond = 253_402_300_799

// next returns the first instant after one, in unix ms, at which a Spec has an occurrence, and false if there is none.
func (s Spec) next(from, after int64) (int64, bool) {
	switch {
	case s.cron != nil:
		at, ok := s.cron.after(seconds(max(after, from-1)))
		return at * 1000, ok && at <= lastSecond
	case s.interval > 0:
		at := from + s.intervals(from, after)*s.interval.Milliseconds()
		return at, at/1000 <= lastSecond
	}
	return 0, false
}

// count returns the number of occurrences between two instants in unix ms.
func (s Spec) count(from, after, before int64) int64 {
	after = max(after, from-1)
	switch {
	case before <= after:
	case s.cron != nil:
		return s.cron.between(seconds(after), seconds(before-1)+1)
	case s.interval > 0:
		return s.intervals(from, before-1) - s.intervals(from, after)
	}
	return 0
}

// intervals returns the number of points of the grid up to an instant, in unix ms.
func (s Spec) intervals(from, at int64) int64 {
	if at < from {
		return 0
	}
	return (at-from)/s.interval.Milliseconds() + 1
}

// after returns the first occurrence after an instant, both in unix seconds, and false if there is none within the
// horizon.
func (c *cron) after(at int64) (int64, bool) {
	if at > lastSecond {
		return 0, false
	}
	if c.goesOn {
		return c.goOn(at)
	}
	front := c.zone.front(at)
	local, ok := c.next(front+1, yearsLater(front))
	if !ok {
		return 0, false
	}
	return c.zone.reach(local), true
}

// goOn is after for an expression that ignores changes of the clock.
func (c *cron) goOn(at int64) (int64, bool) {
	start := at + 1
	s := c.zone.span(start)
	last := yearsLater(at + s.offset)
	for start+s.offset <= last {
		if local, ok := c.next(start+s.offset, min(last, s.end-1+s.offset)); ok {
			return local - s.offset, true
		}
		start = s.end
		s = c.zone.span(start)
	}
	return 0, false
}

// yearsLater returns the time at the horizon.
func yearsLater(local int64) int64 {
	return time.Unix(local, 0).UTC().AddDate(horizon, 0, 0).Unix()
}

// between returns the number of occurrences after an instant and before another, both in unix seconds. It looks once at
// each month between them, and at each change of the zone's clock, so that the work does not depend on their number.
func (c *cron) between(after, before int64) int64 {
	if c.goesOn {
		return c.goesOnBetween(after, before)
	}
	n := c.count(c.zone.front(after)+1, c.zone.front(before-1)+1)
	for change := c.zone.span(after).end; change < before; change = c.zone.span(change).end {
		// All skipped times are one occurrence, together with the first time that is shown after the jump.
		n -= max(c.count(c.zone.front(change-1)+1, c.zone.front(change)+1), 1) - 1
	}
	return n
}

// goesOnBetween is between for an expression that ignores changes of the clock.
func (c *cron) goesOnBetween(after, before int64) int64 {
	var n int64
	for start := after + 1; start < before; {
		s := c.zone.span(start)
		end := min(s.end, before)
		n += c.count(start+s.offset, end+s.offset)
		start = end
	}
	return n
}

// seconds returns the second of a time in unix ms.
func seconds(ms int64) int64 {
	s := ms / 1000
	if ms%1000 < 0 {
		s--
	}
	return s
}
