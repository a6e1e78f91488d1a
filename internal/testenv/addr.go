package testenv

import (
	"testing"

	"github.com/timerd-io/timerd/internal/devserver"
)

// FreeAddr returns an address of 127.0.0.1 that nobody listens on, for a server that t starts by itself.
func FreeAddr(t testing.TB) string {
	t.Helper()
	port, err := devserver.FreePort()
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	return devserver.Address(port)
}
