package console

import (
	"context"
	"sync"
	"time"
)

// How long the data that all pages share count as current.
const (
	stateAge    = time.Second
	forecastAge = 5 * time.Second
)

// readTimeoutShared bounds one reading of them.
const readTimeoutShared = 4 * time.Second

// cache has a value that all requests share. One request at a time reads it, at most once in its age; the others wait for
// that one.
type cache[V any] struct {
	age  time.Duration
	read func(context.Context) V

	mu    sync.Mutex
	value V
	at    time.Time
	under chan struct{} // closed when the reading under way ends; nil without one
}

func newCache[V any](age time.Duration, read func(context.Context) V) *cache[V] {
	return &cache[V]{age: age, read: read}
}

// get returns the value. If ctx ends before there is a fresh one, it returns the last one, perhaps the zero value.
func (c *cache[V]) get(ctx context.Context) V {
	c.mu.Lock()
	if !c.at.IsZero() && time.Since(c.at) < c.age {
		defer c.mu.Unlock()
		return c.value
	}
	under := c.under
	if under == nil {
		under = make(chan struct{})
		c.under = under
		// Not with the request's own context: others wait for it too.
		go c.refresh(context.WithoutCancel(ctx), under)
	}
	c.mu.Unlock()
	select {
	case <-under:
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value
}

func (c *cache[V]) refresh(ctx context.Context, under chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, readTimeoutShared)
	defer cancel()
	value := c.read(ctx)
	c.mu.Lock()
	c.value, c.at, c.under = value, time.Now(), nil
	c.mu.Unlock()
	close(under)
}

// drop makes the next get read the value again, because something was changed.
func (c *cache[V]) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = time.Time{}
}
