// Package testenv gives the tests of the examples a real timerd with a real Redis
// and a real NATS.
package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/timerd-io/timerd/examples/internal/servers"
	"github.com/timerd-io/timerd/internal/devserver"
)

// Servers builds timerd and starts `timerd dev` with a TIMERD_RETRY. Everything ends
// when t does, and an error at its end fails t.
func Servers(t testing.TB, retry string) *servers.Servers {
	t.Helper()
	s, err := servers.Open(t.Context(), servers.Choice{Timerd: Timerd(t), Retry: retry})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Timerd builds the program and returns where it is. It has `timerd dev` take the
// redis-server that the tests are to run against.
func Timerd(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if server := os.Getenv(devserver.BinaryEnv); server != "" {
		path, err := exec.LookPath(server)
		if err == nil {
			path, err = filepath.Abs(path)
		}
		if err == nil {
			err = os.Symlink(path, filepath.Join(dir, "redis-server"))
		}
		if err != nil {
			t.Fatalf("%s: %v", devserver.BinaryEnv, err)
		}
		t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	}
	binary := filepath.Join(dir, "timerd")
	out, err := exec.Command("go", "build", "-race", "-o", binary,
		"github.com/timerd-io/timerd/cmd/timerd").CombinedOutput()
	if err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return binary
}
