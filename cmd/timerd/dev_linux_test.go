package main

import (
	"os"
	"os/exec"
	"testing"

	"github.com/timerd-io/timerd/internal/testenv"
)

// Killed with no chance to clean up, dev still takes its Redis with it.
func TestDevKilled(t *testing.T) {
	testenv.NoLeaks(t)
	var out output
	cmd := exec.Command(os.Args[0], "dev", "--no-samples")
	cmd.Env = []string{mainVariable + "=1", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + t.TempDir()}
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it is killed
	}()
	defer func() {
		_ = cmd.Process.Kill()
		<-ended
	}()
	out.wait(t, patience, "Each firing")
	port := devPort(t, out.String())
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	portCloses(t, port)
}
