package service

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/timerd-io/timerd/listener"
)

const (
	// standbyLag is for how long the events that a standby hears may wait unread. By then the first one's claims have explained most.
	standbyLag = 10 * time.Millisecond
	// hearsWithin is for how long a start waits for the first heartbeat to say whether this timerd is to hear.
	hearsWithin = 300 * time.Millisecond
)

// hearing listens to a node while it is to be heard. Its methods may be called concurrently.
type hearing struct {
	newListener func() *listener.Listener

	mu      sync.Mutex
	ctx     context.Context // of run; nil before
	decided bool            // somebody said whether to hear
	events  *listener.Listener
	stop    context.CancelFunc // ends events
	under   sync.WaitGroup     // way
}

// run listens until ctx ends, whenever the node is to be heard: until somebody says that it is not.
func (h *hearing) run(ctx context.Context) {
	h.mu.Lock()
	h.ctx = ctx
	h.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-time.After(hearsWithin):
	}
	h.mu.Lock()
	undecided := !h.decided
	h.mu.Unlock()
	if undecided {
		h.set(true)
	}
	<-ctx.Done()
	h.set(false)
}

// set says whether the node is to be heard. Where it is not any more, it returns once that has ended.
func (h *hearing) set(hear bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx == nil {
		return // the next heartbeat says it again
	}
	h.decided = true
	switch {
	case hear && h.events == nil && h.ctx.Err() == nil:
		var ctx context.Context
		ctx, h.stop = context.WithCancel(h.ctx)
		events := h.newListener()
		h.events = events
		h.under.Go(func() { events.Run(ctx) })
	case !hear && h.events != nil:
		h.stop()
		h.under.Wait()
		h.events = nil
	}
}

// hears tells whether all events of the node are heard by now.
func (h *hearing) hears() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.events != nil && h.events.Healthy() == nil
}

// healthy returns nil while events flow, or are left to others, and otherwise what is wrong.
func (h *hearing) healthy() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.events != nil:
		return h.events.Healthy()
	case !h.decided:
		return errors.New("not subscribed yet")
	}
	return nil
}
