package notify

import (
	"context"
	"errors"
	"sync"
)

// ErrStopped says that a Publisher takes no more firings.
var ErrStopped = errors.New("notify: publisher has stopped")

// gate is where those wait who have firings to publish: until it opens, and then until there is room. Its methods may be called
// concurrently.
type gate struct {
	opened chan struct{} // closed once firings can be published

	mu      sync.Mutex
	changed chan struct{} // closed when await has to look again; nil if nobody waits
	stopped bool
}

func newGate() *gate { return &gate{opened: make(chan struct{})} }

// open has await begin to ask. Call it once.
func (g *gate) open() { close(g.opened) }

func (g *gate) isOpen() bool {
	select {
	case <-g.opened:
		return true
	default:
		return false
	}
}

// await waits until ready returns true. It asks again whenever announce is called. It does not wait after ctx has ended.
func (g *gate) await(ctx context.Context, ready func() bool) error {
	if !g.isOpen() {
		select {
		case <-g.opened:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	var changed <-chan struct{}
	for {
		switch {
		case g.isStopped():
			return ErrStopped
		case ready():
			return nil
		case changed == nil: // from now on no change is missed: ask once more
			changed = g.change()
			continue
		}
		select {
		case <-changed:
			changed = nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// change returns what the next announce closes.
func (g *gate) change() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.changed == nil {
		g.changed = make(chan struct{})
	}
	return g.changed
}

// announce has everybody in await ask again.
func (g *gate) announce() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
}

// stop ends every await, now and from now on.
func (g *gate) stop() {
	g.mu.Lock()
	g.stopped = true
	g.mu.Unlock()
	g.announce()
}

func (g *gate) isStopped() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stopped
}
