package devserver_test

import (
	"os/exec"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/devserver"
)

func TestStop(t *testing.T) {
	t.Parallel()
	p, err := devserver.StartProcess(exec.Command("sleep", "600"))
	if err != nil {
		t.Fatal(err)
	}
	if p.Pid() <= 0 {
		t.Errorf("Pid() = %d", p.Pid())
	}
	if err := p.Stop(time.Minute); err != nil {
		t.Error(err)
	}
	if code := p.ExitCode(); code != -1 {
		t.Errorf("exit code %d of a process that was told to end", code)
	}
	if err := p.Stop(time.Minute); err != nil {
		t.Errorf("stopping it again: %v", err)
	}
}

func TestStopKills(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sh", "-c", `trap "" TERM; echo ready; while :; do sleep 0.1; done`)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p, err := devserver.StartProcess(cmd)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 16)); err != nil { // it ignores SIGTERM from here on
		t.Fatal(err)
	}
	if err := p.Stop(50 * time.Millisecond); err != nil {
		t.Error(err)
	}
	select {
	case <-p.Done():
	default:
		t.Error("Stop returned before the end")
	}
}

func TestEndsByItself(t *testing.T) {
	t.Parallel()
	p, err := devserver.StartProcess(exec.Command("sh", "-c", "exit 3"))
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if code := p.ExitCode(); code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
	if _, err := devserver.StartProcess(exec.Command("/no/such/program")); err == nil {
		t.Error("a missing program was started")
	}
}
