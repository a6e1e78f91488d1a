package service

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/streams"
)

// circuits says in NATS which hosts this process does not call because they fail, for timerd status. Its methods may be called
// concurrently.
type circuits struct {
	js       jetstream.JetStream
	streams  streams.Config
	instance string
	log      *slog.Logger
	changed  chan struct{}

	mu    sync.Mutex
	since map[string]time.Time // host -> when it was not called any more
}

// note takes that a circuit has opened for so long, or closed.
func (c *circuits) note(host string, length time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, open := c.since[host]; length == 0 {
		delete(c.since, host)
	} else if !open {
		c.since[host] = time.Now().UTC()
	}
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// run says it at each change, and from time to time while there are any, until ctx ends.
func (c *circuits) run(ctx context.Context) {
	again := time.NewTicker(streams.CircuitsPause)
	defer again.Stop()
	said := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.changed:
		case <-again.C:
		}
		c.mu.Lock()
		var all []streams.Circuit
		for host, since := range c.since {
			all = append(all, streams.Circuit{Host: host, Since: since})
		}
		c.mu.Unlock()
		if len(all)+said == 0 {
			continue
		}
		within, cancel := context.WithTimeout(ctx, time.Second)
		if err := streams.SayCircuits(within, c.js, c.streams, c.instance, all); err != nil {
			c.log.Debug("cannot say which hosts fail", "err", err)
		}
		cancel()
		said = len(all)
	}
}
