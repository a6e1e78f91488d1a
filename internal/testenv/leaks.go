package testenv

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/timerd-io/timerd/internal/devserver"
)

// leakPatience is the time for goroutines to end: after failed dials a Redis client notices only a second later that it
// is closed, and a busy machine is slow.
const leakPatience = time.Minute

// NoLeaks fails t when goroutines that t started are still running at its end. Call it first: the check then comes
// after every other cleanup, when servers and clients are closed. It cannot distinguish parallel tests; use Main for
// them.
func NoLeaks(t testing.TB) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		Eventually(t, leakPatience, func() error { return goleak.Find(before) }, "goroutines left behind")
	})
}

// Main runs the tests of a package, which may run in parallel, and fails if goroutines are still running afterwards:
//
//	func TestMain(m *testing.M) { testenv.Main(m) }
//
// Goroutines of the functions that except names do not count: a library may leave some.
func Main(m *testing.M, except ...string) {
	code := m.Run()
	var ignored []goleak.Option
	for _, function := range except {
		ignored = append(ignored, goleak.IgnoreAnyFunction(function))
	}
	if err := devserver.Until(context.Background(), leakPatience,
		func() error { return goleak.Find(ignored...) }); err != nil {
		fmt.Fprintln(os.Stderr, "goroutines left behind:", err)
		code = max(code, 1)
	}
	os.Exit(code) //nolint:forbidigo // TestMain has no other way to fail
}
