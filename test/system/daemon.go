package system

import (
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
)

// Daemon is one running timerd process.
type Daemon struct {
	T    testing.TB
	Cmd  *exec.Cmd
	Log  *testenv.Output
	Addr string
	Done <-chan struct{} // closed once it has ended
}

// Launch starts a process. Settings are "NAME=value" and come on top of s.env.
func (s *System) Launch(settings ...string) *Daemon {
	s.T.Helper()
	return s.LaunchCommand(nil, settings...)
}

// LaunchCommand is launch for a command of timerd.
func (s *System) LaunchCommand(args []string, settings ...string) *Daemon {
	s.T.Helper()
	addr := testenv.FreeAddr(s.T)
	cmd := s.Process(args, append([]string{"TIMERD_HTTP_ADDR=" + addr}, settings...)...)
	p := &Daemon{T: s.T, Cmd: cmd, Log: &testenv.Output{}, Addr: addr}
	p.Cmd.Stdout, p.Cmd.Stderr = p.Log, p.Log
	process, err := devserver.StartProcess(cmd) // so that it ends with this program in any case
	if err != nil {
		s.T.Fatal(err)
	}
	p.Done = process.Done()
	s.T.Cleanup(func() {
		p.Kill()
		if s.T.Failed() {
			s.T.Logf("timerd %d said:\n%s", p.Cmd.Process.Pid, p.Log)
		}
	})
	return p
}

// Start launches a process and waits until it is ready.
func (s *System) Start(settings ...string) *Daemon {
	s.T.Helper()
	p := s.Launch(settings...)
	p.AwaitReady(true)
	return p
}

// Kill ends the process as kill -9 does.
func (p *Daemon) Kill() {
	_ = p.Cmd.Process.Kill()
	<-p.Done
}

// Stop ends the process as an operator does, and checks how it ended.
func (p *Daemon) Stop() {
	p.T.Helper()
	watch := testenv.StartStopwatch()
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.Done:
	case <-time.After(Patience):
		p.T.Fatal("timerd did not stop")
	}
	watch.AtMost(p.T, 10*time.Second, "timerd's stop")
	if code := p.Cmd.ProcessState.ExitCode(); code != 0 {
		p.T.Errorf("exit code %d, want 0", code)
	}
}

// Signal sends the process a signal.
func (p *Daemon) Signal(sig syscall.Signal) {
	p.T.Helper()
	if err := p.Cmd.Process.Signal(sig); err != nil {
		p.T.Fatal(err)
	}
}

// Get asks the process over HTTP.
func (p *Daemon) Get(path string) (status int, body string, err error) {
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get("http://" + p.Addr + path)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// AwaitReady waits until the process reports that it is ready, or that it is not.
func (p *Daemon) AwaitReady(want bool) {
	p.T.Helper()
	testenv.Eventually(p.T, Patience, func() error {
		select {
		case <-p.Done:
			p.T.Fatalf("timerd ended with exit code %d", p.Cmd.ProcessState.ExitCode())
		default:
		}
		status, body, err := p.Get("/readyz")
		if err != nil {
			return err
		}
		if (status == http.StatusOK) != want {
			return fmt.Errorf("/readyz: %d %s", status, body)
		}
		return nil
	}, fmt.Sprintf("readiness to be %v", want))
}

// Measures waits until the metrics match a pattern, line by line, or do not.
func (p *Daemon) Measures(want bool, pattern string) {
	p.T.Helper()
	line := regexp.MustCompile("(?m)^" + pattern + "$")
	testenv.Eventually(p.T, Patience, func() error {
		_, body, err := p.Get("/metrics")
		if err == nil && line.MatchString(body) != want {
			err = fmt.Errorf("%q in the metrics: %v", pattern, !want)
		}
		return err
	}, "the metrics")
}

// ReadySays waits until /readyz has a status, and a line that begins with each text.
func (p *Daemon) ReadySays(want int, lines ...string) {
	p.T.Helper()
	testenv.Eventually(p.T, Patience, func() error {
		status, body, err := p.Get("/readyz")
		if err != nil {
			return err
		}
		for _, line := range lines {
			if status != want || !strings.Contains("\n"+body, "\n"+line) {
				return fmt.Errorf("/readyz: %d %s", status, body)
			}
		}
		return nil
	}, fmt.Sprintf("/readyz to be %d with %q", want, lines))
}

// Ends waits for the end of a process and returns its exit code.
func (p *Daemon) Ends() int {
	p.T.Helper()
	select {
	case <-p.Done:
	case <-time.After(Patience):
		p.T.Fatal("timerd did not end")
	}
	return p.Cmd.ProcessState.ExitCode()
}
