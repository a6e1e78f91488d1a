package main

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
)

// Killed with no chance to clean up, dev still takes its Redis with it.
func TestDevKilled(t *testing.T) {
	testenv.NoLeaks(t)
	var out testenv.Output
	cmd := exec.Command(os.Args[0], devArgs("--no-samples")...)
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
	out.Wait(t, patience, "Each firing")
	port := devPort(t, out.String())
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	portCloses(t, port)
}

// Its output cut off, as by head, dev clears everything away.
func TestDevCutOff(t *testing.T) {
	testenv.NoLeaks(t)
	temp := t.TempDir()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs testenv.Output
	cmd := exec.Command(os.Args[0], devArgs()...)
	cmd.Env = []string{mainVariable + "=1", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + temp}
	cmd.Stdout, cmd.Stderr = writer, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if err := writer.Close(); err != nil {
		t.Error(err)
	}
	if _, err := reader.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	if err := reader.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err = <-ended:
	case <-time.After(patience):
		_ = cmd.Process.Kill()
		t.Fatalf("dev did not end: %v\n%s", <-ended, &errs)
	}
	if err != nil || errs.String() != "" {
		t.Errorf("%v\n%s", err, &errs)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
