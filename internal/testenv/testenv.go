// Package testenv gives tests real servers and ways to break them: a redis-server child process, an in-process NATS
// server with JetStream, a TCP proxy that injects faults, and a collector of a stream's messages.
//
// Every server listens on 127.0.0.1, on a port of its own outside the range that the kernel hands to outgoing
// connections, and is stopped when its test ends, failed or not. A helper that cannot do its work ends the test with
// t.Fatal, so call helpers from the goroutine that runs the test, except where one says otherwise. A missing
// redis-server is such a failure: nothing is skipped.
package testenv

import (
	"os"
	"testing"
	"time"
)

// startTimeout bounds how long a server may take to answer after its start. It is generous: the race detector and a
// busy machine share it.
const startTimeout = time.Minute

// tempDir makes a directory that is removed at cleanup. Its path is short, unlike t.TempDir's, so that a Unix socket
// fits in it.
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
