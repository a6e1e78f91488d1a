package listener

import (
	"sync"
	"time"
)

// serverClock relates local instants to the server's clock. It errs on the early
// side.
type serverClock struct {
	mu     sync.Mutex
	server time.Time
	local  time.Time
}

// read takes a reading of the server's clock that was received at a local
// instant.
func (c *serverClock) read(server, received time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server, c.local = server, received
}

// at returns what the server's clock showed at a local instant, in unix ms, or a
// little earlier.
func (c *serverClock) at(local time.Time) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.server.Add(local.Sub(c.local)).UnixMilli()
}
