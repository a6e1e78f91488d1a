package service

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/timerd-io/timerd/listener"
)

// standbyLag is for how long the events that a standby hears may wait unread. By then the first one's claims have explained most.
const standbyLag = 10 * time.Millisecond

// hearing listens to a node while it is to be heard; it is a reconciler.Events. Its methods may be called concurrently.
type hearing struct {
	newListener func() *listener.Listener
	believed    time.Duration // for how long a canary shows that events are heard

	mu      sync.Mutex
	ctx     context.Context // of run; nil before
	events  *listener.Listener
	stop    context.CancelFunc // ends events
	running sync.WaitGroup
}

// run listens until ctx ends, from the start on, unless somebody says that the node is not to be heard.
func (h *hearing) run(ctx context.Context) {
	h.mu.Lock()
	h.ctx = ctx
	h.mu.Unlock()
	h.Hear(true)
	<-ctx.Done()
	h.Hear(false)
}

// Hear starts to hear the node, or stops, and returns once that has ended.
func (h *hearing) Hear(hear bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx == nil {
		return // the next heartbeat says it again
	}
	switch {
	case hear && h.events == nil && h.ctx.Err() == nil:
		var ctx context.Context
		ctx, h.stop = context.WithCancel(h.ctx)
		events := h.newListener()
		h.events = events
		h.running.Go(func() { events.Run(ctx) })
	case !hear && h.events != nil:
		h.stop()
		h.running.Wait()
		h.events = nil
	}
}

// Hears reports whether all events of the node are heard now.
func (h *hearing) Hears() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.events != nil && h.events.Hears(h.believed)
}

// healthy returns nil while events flow, or are left to others, and otherwise what is wrong.
func (h *hearing) healthy() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.events != nil:
		return h.events.Healthy()
	case h.ctx == nil:
		return errors.New("not subscribed yet")
	}
	return nil
}
