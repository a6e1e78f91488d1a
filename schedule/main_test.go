package schedule_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/timerd-io/timerd/internal/devserver"
)

// TestMain is that of testenv, and ends the servers before it looks for leftovers.
func TestMain(m *testing.M) {
	err := flag.Set("rapid.nofailfile", "true")
	code := m.Run()
	leaks := func() error { return goleak.Find() }
	if err = errors.Join(err, servers.close(),
		devserver.Until(context.Background(), 3*time.Second, leaks)); err != nil {
		fmt.Fprintln(os.Stderr, "after the tests:", err)
		code = max(code, 1)
	}
	os.Exit(code) //nolint:forbidigo // TestMain has no other way to fail
}
