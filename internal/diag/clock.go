package diag

import "time"

// maxSkew is the difference of clocks from which on there is a warning.
const maxSkew = time.Second

// ClockAhead returns how far a server's clock is ahead of the local one, if it showed at between two local instants.
func ClockAhead(before, after, at time.Time) time.Duration {
	switch {
	case at.Before(before):
		return at.Sub(before)
	case at.After(after):
		return at.Sub(after)
	}
	return 0
}

// Skew judges the clock of a server that was read between two local instants.
func (f *Findings) Skew(server string, before, after, at time.Time) {
	if off := ClockAhead(before, after, at); off.Abs() > maxSkew {
		f.Warn("let NTP or chrony set both clocks",
			"that of %s is off by %s from the one here: due times follow the clock of Redis, delays of retries that "+
				"of NATS too", server, Duration(off.Round(time.Millisecond)))
		return
	}
	f.OK("that of %s agrees with the one here", server)
}
