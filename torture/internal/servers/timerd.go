package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/torture/internal/clockstep"
)

// drainTime bounds the end of a timerd after SIGTERM. timerd promises 10 s.
const drainTime = 15 * time.Second

// readyPoll is the pause between two reads of /readyz.
const readyPoll = 50 * time.Millisecond

// stepTimeout bounds a step of a timerd's clock on a busy machine.
const stepTimeout = 30 * time.Second

// Timerd is one timerd, started again and again with the same configuration.
type Timerd struct {
	binary  string
	args    []string // none: timerd serve
	logFile string
	clock   string // the file of the clock's step
	env     []string
	addr    string // of its HTTP server
	http    http.Client
	process atomic.Pointer[devserver.Process]
}

func newTimerd(binary, logFile string, env map[string]string) (*Timerd, error) {
	port, err := devserver.FreePort()
	if err != nil {
		return nil, err
	}
	t := &Timerd{
		binary: binary, logFile: logFile, clock: logFile + ".clock", addr: devserver.Address(port),
		http: http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	t.env = append(environment(env), "TIMERD_HTTP_ADDR="+t.addr, clockstep.Variable+"="+t.clock)
	return t, nil
}

// environment returns this process's environment with the given settings of timerd, and no other ones.
func environment(settings map[string]string) []string {
	all := slices.DeleteFunc(os.Environ(), func(variable string) bool { return strings.HasPrefix(variable, "TIMERD_") })
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		all = append(all, name+"="+settings[name])
	}
	return all
}

// Addr returns the address of its HTTP server.
func (t *Timerd) Addr() string { return t.addr }

// Start starts the process. Its output is appended to its log.
func (t *Timerd) Start() error {
	log, err := os.OpenFile(t.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(context.Background(), t.binary, t.args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = t.env, log, log
	p, err := devserver.StartProcess(cmd)
	if err = errors.Join(err, log.Close()); err != nil {
		return fmt.Errorf("servers: start %s: %w; `make build` makes bin/timerd", t.binary, err)
	}
	t.process.Store(p)
	return nil
}

// Kill ends the process, if there is one, with SIGKILL, and returns once it is gone.
func (t *Timerd) Kill() error {
	if p := t.process.Load(); p != nil {
		return kill(p)
	}
	return nil
}

// Stop ends the process with SIGTERM. An exit code other than 0 is an error.
func (t *Timerd) Stop() error {
	p := t.process.Load()
	if err := p.Stop(drainTime); err != nil {
		return err
	}
	if code := p.ExitCode(); code != 0 {
		return fmt.Errorf("servers: timerd ended with exit code %d after SIGTERM, see %s", code, t.logFile)
	}
	return nil
}

// Pause freezes the process.
func (t *Timerd) Pause() error { return t.process.Load().Signal(syscall.SIGSTOP) }

// Resume lets a paused process go on.
func (t *Timerd) Resume() error { return t.process.Load().Signal(syscall.SIGCONT) }

// StepClock sets the difference between the process's wall clock and the machine's, in whole seconds. The difference
// lasts until the next call or the next start. It needs a program built by package clockstep: the signal would end any
// other one.
func (t *Timerd) StepClock(step time.Duration) error {
	seconds := strconv.FormatInt(int64(step/time.Second), 10)
	if err := os.WriteFile(t.clock, []byte(seconds), 0o600); err != nil {
		return err
	}
	if err := t.process.Load().Signal(syscall.SIGUSR2); err != nil {
		return err
	}
	err := devserver.Until(context.Background(), stepTimeout, func() bool {
		_, err := os.Stat(t.clock)
		return errors.Is(err, fs.ErrNotExist)
	})
	if err != nil {
		return fmt.Errorf("servers: timerd has not stepped its clock in %v, see %s", stepTimeout, t.logFile)
	}
	return nil
}

// AwaitReady waits until timerd is ready, at most until ctx ends. Its error has the last answer.
func (t *Timerd) AwaitReady(ctx context.Context) error {
	poll := time.NewTicker(readyPoll)
	defer poll.Stop()
	var last error
	for {
		err := t.ready(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-t.process.Load().Done():
			return fmt.Errorf("servers: timerd ended with exit code %d, see %s", t.process.Load().ExitCode(), t.logFile)
		case <-ctx.Done():
			return fmt.Errorf("servers: timerd is not ready: %w; see %s", last, t.logFile)
		case <-poll.C:
		}
	}
}

func (t *Timerd) ready(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+t.addr+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	response, err := t.http.Do(request)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("/readyz: %d %s", response.StatusCode, strings.TrimSpace(string(text)))
	}
	return nil
}
