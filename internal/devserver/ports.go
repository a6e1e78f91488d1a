package devserver

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
)

// Ports are taken from below every common ephemeral range (Linux starts at 32768, the BSDs and macOS at 49152). In that
// range an outgoing connection could take a server's port while the server is down, and a client that retries could
// even connect to itself.
const (
	firstPort = 15000
	lastPort  = 32000
)

// tries limits the searches for a free port, or the starts of a server on one.
const tries = 50

// FreePort returns a free port of 127.0.0.1. On Linux the port belongs to this process until the process ends: no other
// call of FreePort, in any process, returns it meanwhile. On other systems, and to programs that do not use FreePort,
// the port may be lost before the caller binds it; OnFreePort tries again then.
func FreePort() (int, error) {
	var lastErr error
	for range tries {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if lastErr = reserve(port); lastErr == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("devserver: no free port in %d-%d after %d tries: %w", firstPort, lastPort, tries, lastErr)
}

// OnFreePort calls start with a free port. As long as start's error wraps syscall.EADDRINUSE, it tries again with
// another port. It returns start's last error.
func OnFreePort(start func(port int) error) error {
	var err error
	for range tries {
		var port int
		if port, err = FreePort(); err != nil {
			return err
		}
		if err = start(port); !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
	}
	return err
}

// Address returns the host:port of a port of 127.0.0.1.
func Address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
