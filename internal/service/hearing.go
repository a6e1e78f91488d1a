package service

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/timerd-io/timerd/listener"
)

// standbyLag is the time for which a standby leaves events unread. By then the claims of the first timerd explain most
// of them.
const standbyLag = 10 * time.Millisecond

// hearing listens to a node's events while switched on; it is a reconciler.Events. Its methods may be called
// concurrently.
type hearing struct {
	newListener func() *listener.Listener
	believed    time.Duration // the time for which a returned canary is proof that events arrive

	mu      sync.Mutex
	ctx     context.Context // of run; nil before
	events  *listener.Listener
	stop    context.CancelFunc // ends events
	running sync.WaitGroup
}

// run listens from the start until ctx ends, unless Hear switches it off.
func (h *hearing) run(ctx context.Context) {
	h.mu.Lock()
	h.ctx = ctx
	h.mu.Unlock()
	h.Hear(true)
	<-ctx.Done()
	h.Hear(false)
}

// Hear switches listening on or off. It returns once a stopped listener has ended.
func (h *hearing) Hear(hear bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx == nil {
		return // run has not begun; the next heartbeat calls again
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

// Hears reports whether all events of the node arrive now.
func (h *hearing) Hears() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.events != nil && h.events.Hears(h.believed)
}

// healthy returns nil while events flow, or are left to other timerds, and otherwise the fault.
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
