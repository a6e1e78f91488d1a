package reconciler

import "time"

// clock relates the Redis server's clock to the local monotonic one.
type clock struct {
	server   time.Time     // a reading of the server's clock
	local    time.Time     // the local instant of it, at best knowledge
	accuracy time.Duration // how far off the local instant may be
}

// read takes a reading of the server's clock, made between two local instants.
// It is dropped if an older one, not too old, is much better and agrees with it.
func (c *clock) read(server, sent, received time.Time) {
	accuracy := received.Sub(sent) / 2
	local := sent.Add(accuracy)
	if !c.local.IsZero() && accuracy > 2*c.accuracy && received.Sub(c.local) < maxClockAge {
		predicted := c.server.Add(local.Sub(c.local))
		if server.Sub(predicted).Abs() <= accuracy+c.accuracy {
			return
		}
	}
	*c = clock{server: server, local: local, accuracy: accuracy}
}

// until returns how long it is, locally, until the server's clock shows the
// given unix ms. Before any reading everything is due.
func (c *clock) until(ms int64) time.Duration {
	if c.local.IsZero() {
		return 0
	}
	return time.UnixMilli(ms).Sub(c.server) - time.Since(c.local)
}

// now returns what the server's clock shows, in unix ms, or 0 before any reading.
func (c *clock) now() int64 {
	if c.local.IsZero() {
		return 0
	}
	return c.server.Add(time.Since(c.local)).UnixMilli()
}
