package console

import (
	"context"
	"sync"
	"time"
)

// The times for which data shared by all pages count as current.
const (
	stateAge    = time.Second
	forecastAge = 5 * time.Second
)

// readTimeoutShared bounds one reading of them.
const readTimeoutShared = 4 * time.Second

// cache has a value that all requests share. It is read at most once in its age, by one request at a time; other
// requests wait for that read.
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

// get returns the value. If ctx ends before there is a current value, it returns the last value, perhaps the zero one.
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

// drop makes the next get read the value again, after a change.
func (c *cache[V]) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = time.Time{}
}
