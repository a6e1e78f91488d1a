package testenv

import (
	"context"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/devserver"
)

// Eventually polls cond until it holds and ends the test with msg, and cond's last error, when it
// does not hold within timeout. cond is tried at once, then at growing intervals up to 25 ms, and a
// last time at the deadline. It runs on the caller's goroutine and should return quickly.
func Eventually[C devserver.Condition](t testing.TB, timeout time.Duration, cond C, msg string) {
	t.Helper()
	if err := devserver.Until(context.WithoutCancel(t.Context()), timeout, cond); err != nil {
		t.Fatalf("%s: not within %v: %v", msg, timeout, err)
	}
}
