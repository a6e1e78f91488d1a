package status

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// recentAge is how long what NATS tells of webhooks is taken for the present by who asks again and again, and silentAge how
	// long it is left alone after it did not answer, as it does not where a right is missing.
	recentAge = 3 * time.Second
	silentAge = time.Minute
)

// RecentWebhooks has what GatherWebhooks last returned, for who makes reports again and again of the same streams. The zero
// value has nothing yet. It may be used at the same time by several: one asks, and the others wait for the answer.
type RecentWebhooks struct {
	mu    sync.Mutex
	last  *Webhooks
	err   error
	until time.Time
}

// get asks, or returns what was told not long ago. A nil r always asks.
func (r *RecentWebhooks) get(ask func() (*Webhooks, error)) (*Webhooks, error) {
	if r == nil {
		return ask()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().Before(r.until) {
		return r.last, r.err
	}
	age := recentAge
	r.last, r.err = ask()
	if errors.Is(r.err, context.DeadlineExceeded) || errors.Is(r.err, nats.ErrTimeout) {
		age = silentAge
	}
	r.until = time.Now().Add(age)
	return r.last, r.err
}
