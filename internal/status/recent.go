package status

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// recentAge is the time for which an answer about webhooks counts as current for repeated callers. silentAge is the
	// pause after a missing right: NATS logs each refusal, and does not answer.
	recentAge = 3 * time.Second
	silentAge = time.Minute
)

// RecentWebhooks has the last result of GatherWebhooks, for callers that make repeated reports of the same streams. The
// zero value is empty. Its methods may be called concurrently: one caller asks, and the others wait for the answer.
type RecentWebhooks struct {
	mu    sync.Mutex
	last  *Webhooks
	err   error
	until time.Time
}

// get asks, or returns a recent answer. refused reports whether NATS has refused a request. A nil r always asks.
func (r *RecentWebhooks) get(ask func() (*Webhooks, error), refused func() bool) (*Webhooks, error) {
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
	if (errors.Is(r.err, context.DeadlineExceeded) || errors.Is(r.err, nats.ErrTimeout)) && refused() {
		age = silentAge
	}
	r.until = time.Now().Add(age)
	return r.last, r.err
}
