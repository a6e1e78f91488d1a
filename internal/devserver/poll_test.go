package devserver_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/timerd-io/timerd/internal/devserver"
)

func TestPollEndsForEachReason(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		errNotYet := errors.New("not yet")
		calls := 0
		if err := devserver.Until(t.Context(), time.Minute, func() bool { calls++; return calls == 3 }); err != nil ||
			calls != 3 {
			t.Errorf("a condition that comes to hold: %v after %d calls", err, calls)
		}

		began := time.Now()
		if err := devserver.Until(t.Context(), time.Minute, func() error { return errNotYet }); !errors.Is(err,
			errNotYet) || time.Since(began) != time.Minute {
			t.Errorf("a condition that never holds: %v after %v", err, time.Since(began))
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := devserver.Until(ctx, time.Minute, func() error { return errNotYet })
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errNotYet) {
			t.Errorf("a context that ends: %v", err)
		}

		calls = 0
		if err := devserver.Until(t.Context(), time.Minute, func() error {
			calls++
			return devserver.Permanent(errNotYet)
		}); err != errNotYet || calls != 1 { //nolint:errorlint // not wrapped
			t.Errorf("a permanent error: %v after %d calls", err, calls)
		}
	})
}
