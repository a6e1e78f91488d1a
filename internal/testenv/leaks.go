package testenv

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

// leakPatience is how long goroutines get to end.
const leakPatience = 3 * time.Second

// NoLeaks fails t when goroutines that t started are still running at its end. Call it first: the
// check then comes after every other cleanup, when servers and clients are closed. It cannot tell
// tests apart that run in parallel; do not use it in one.
func NoLeaks(t testing.TB) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		// A Redis client whose dials failed notices only a second later that it is closed.
		Eventually(t, leakPatience, func() error { return goleak.Find(before) }, "goroutines left behind")
	})
}
