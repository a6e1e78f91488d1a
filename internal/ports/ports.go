// Package ports finds ports of 127.0.0.1 for servers that are started and stopped
// again and again.
package ports

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are taken from below every common ephemeral range (Linux starts at 32768, the BSDs and
// macOS at 49152). In that range an outgoing connection could take a server's port while the server
// is down, and a client that retries could even connect to itself.
const (
	first = 15000
	last  = 32000
)

// Tries is how often to try: another process may take a port that was free.
const Tries = 50

// Free returns a port of 127.0.0.1 that could be bound a moment ago. Another process may take it
// first: callers try again with another one.
func Free() (int, error) {
	var lastErr error
	for range Tries {
		port := first + rand.IntN(last-first)
		l, err := net.Listen("tcp", Address(port))
		if err != nil {
			lastErr = err
			continue
		}
		return port, l.Close()
	}
	return 0, fmt.Errorf("ports: no free port in %d-%d after %d tries: %w", first, last, Tries, lastErr)
}

// Address returns the host:port of a port of 127.0.0.1.
func Address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
