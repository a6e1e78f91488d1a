package diag

import "time"

// maxSkew is how far apart clocks may be without a warning.
const maxSkew = time.Second

// Skew judges the clock of a server that was read between two local instants.
func (f *Findings) Skew(server string, before, after, at time.Time) {
	var off time.Duration
	switch {
	case at.Before(before):
		off = at.Sub(before)
	case at.After(after):
		off = at.Sub(after)
	}
	if off.Abs() > maxSkew {
		f.Warn("let NTP or chrony set both clocks",
			"that of %s is off by %s from the one here: due times follow the clock of Redis, delays of retries that of NATS too", server, Duration(off.Round(time.Millisecond)))
		return
	}
	f.OK("that of %s agrees with the one here", server)
}
