package status

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// Whoever reloads a page each second has NATS asked once in a while.
func TestRecentWebhooks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r RecentWebhooks
		asked, told, failure, refused := 0, &Webhooks{}, error(nil), false
		get := func(seconds int) {
			t.Helper()
			for range seconds {
				w, err := r.get(func() (*Webhooks, error) {
					asked++
					return told, failure
				}, func() bool { return refused })
				if w != told || !errors.Is(err, failure) {
					t.Errorf("%v, %v", w, err)
				}
				time.Sleep(time.Second)
			}
		}
		get(60)
		if asked != 20 {
			t.Errorf("asked %d times in a minute", asked)
		}
		asked, told, failure = 0, nil, fmt.Errorf("stream TIMERS_DELIVERY: %w", context.DeadlineExceeded)
		get(60)
		if asked != 20 {
			t.Errorf("on a busy machine, asked %d times in a minute", asked)
		}
		asked, refused = 0, true
		get(60)
		if asked != 1 {
			t.Errorf("without the right to, asked %d times in a minute", asked)
		}
		asked, failure = 0, errors.New("of another kind")
		get(60)
		if asked != 20 {
			t.Errorf("asked %d times in a minute", asked)
		}
	})
}
