package testenv

import (
	"testing"

	"go.uber.org/goleak"
)

// NoLeaks fails t when goroutines that t started are still running at its end. Call it first: the
// check then comes after every other cleanup, when servers and clients are closed. It cannot tell
// tests apart that run in parallel; do not use it in one.
func NoLeaks(t testing.TB) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		if err := goleak.Find(before); err != nil {
			t.Errorf("goroutines left behind: %v", err)
		}
	})
}
