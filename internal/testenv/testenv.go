// Package testenv gives tests real servers and ways to break them: a redis-server child process, an
// in-process NATS server with JetStream, a TCP proxy that injects faults, and a collector of what a
// stream received.
//
// Every server listens on 127.0.0.1, on a port of its own outside the range that the kernel hands
// to outgoing connections, and is stopped when its test ends, failed or not. A helper that cannot
// do its work ends the test with t.Fatal, so call helpers from the goroutine that runs the test,
// except where one says otherwise. A missing redis-server is such a failure: nothing is skipped.
package testenv

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"testing"
	"time"
)

// startTimeout bounds how long a server may take to answer after its start. It is generous: the
// race detector and a busy machine share it.
const startTimeout = 20 * time.Second

// Ports are taken from below every common ephemeral range (Linux starts at 32768, the BSDs and
// macOS at 49152). In that range an outgoing connection could take a server's port while the server
// is down, and a client that retries could even connect to itself.
const (
	firstPort = 15000
	lastPort  = 32000
	portTries = 50
)

// freePort returns a port of 127.0.0.1 that could be bound a moment ago. Another process may take
// it first: callers try again with another one.
func freePort() (int, error) {
	var last error
	for range portTries {
		port := firstPort + rand.IntN(lastPort-firstPort)
		l, err := net.Listen("tcp", address(port))
		if err != nil {
			last = err
			continue
		}
		return port, l.Close()
	}
	return 0, fmt.Errorf("testenv: no free port in %d-%d after %d tries: %w", firstPort, lastPort, portTries, last)
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// tempDir makes a directory that is removed at cleanup. Its path is short, unlike t.TempDir's, so
// that a Unix socket fits in it.
func tempDir(t testing.TB, name string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "timerd-"+name+"-") //nolint:usetesting // for the short path
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("testenv: %v", err)
		}
	})
	return dir
}

// tail returns the last lines of a log file, or why there are none.
func tail(path string) string {
	const lines = 40
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return string(bytes.Join(all, []byte("\n")))
}
