// Package rig runs the servers and workers of one measured system. They are separate processes, on free ports of
// 127.0.0.1, with their data in one temporary directory. The package measures their usage.
package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
)

const (
	startTimeout = 60 * time.Second // a server without data to load takes much less
	stopGrace    = 10 * time.Second
	portTries    = 3 // another process may take a port that was free
)

// Rig has the processes of one system. Its methods may be called from any goroutine, except Close, which comes last.
type Rig struct {
	// Dir is the temporary directory, removed by Close.
	Dir string
	// Self is the path of this program. It serves as the nats-server and the Go workers too.
	Self string
	// Timerd is the path of the timerd to measure.
	Timerd string
	// SyncDelay is added to each disk sync of the nats-servers that the rig starts.
	SyncDelay time.Duration
	// RedisClient is a client of the redis-server, once that is started.
	RedisClient *redis.Client

	mu        sync.Mutex
	processes []process
	closers   []func() error
}

type process struct {
	role string
	Process
	log func() string // returns the end of the log
}

// Process is a process of the rig.
type Process interface {
	Pid() int
	Done() <-chan struct{}
	ExitCode() int
}

// New makes a rig and its directory.
func New(timerd string) (*Rig, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "timerd-bench-")
	if err != nil {
		return nil, err
	}
	// Servers that run as another user must reach their own directories in Dir.
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // no file in it is readable by others
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &Rig{Dir: dir, Self: self, Timerd: timerd}, nil
}

// Subdir makes a directory in Dir.
func (r *Rig) Subdir(name string) (string, error) {
	return os.MkdirTemp(r.Dir, name+"-")
}

// Defer makes Close call f. Close calls the last f first, and before that ends processes started later.
func (r *Rig) Defer(f func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closers = append(r.closers, f)
}

// Start starts a process. Close ends it. Processes of one role are counted together. The stderr goes to a log file, and
// so does the stdout unless the caller has taken it. The error of Died has the end of the file.
func (r *Rig) Start(role string, cmd *exec.Cmd) (*devserver.Process, error) {
	log, err := os.CreateTemp(r.Dir, role+"-*.log")
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the process has a copy of it
	cmd.Stderr = log
	if cmd.Stdout == nil {
		cmd.Stdout = log
	}
	p, err := devserver.StartProcess(cmd)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", role, err)
	}
	r.watch(role, p, func() string { return tail(log.Name()) })
	r.Defer(func() error { return p.Stop(stopGrace) })
	return p, nil
}

// Stop ends the processes of a role that Start started, and takes them out of the count.
func (r *Rig) Stop(role string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	r.processes = slices.DeleteFunc(r.processes, func(p process) bool {
		started, ok := p.Process.(*devserver.Process)
		if ok = ok && p.role == role; ok {
			errs = append(errs, started.Stop(stopGrace))
		}
		return ok
	})
	return errors.Join(errs...)
}

// watch makes Usage and Died include a process.
func (r *Rig) watch(role string, p Process, log func() string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.processes = append(r.processes, process{role: role, Process: p, log: log})
}

// Died returns an error, with the end of the log, if a process has ended.
func (r *Rig) Died() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.processes {
		select {
		case <-p.Done():
			return fmt.Errorf("%s ended with exit code %d: %s", p.role, p.ExitCode(), p.log())
		default:
		}
	}
	return nil
}

// Close ends the processes, the last one first, and removes the directory.
func (r *Rig) Close() error {
	var errs []error
	for _, f := range slices.Backward(r.closers) {
		errs = append(errs, f())
	}
	return errors.Join(append(errs, os.RemoveAll(r.Dir))...)
}

// listening starts a server on a free port, which start gets, and waits until ready returns nil. If the server ends at
// its start, another process may have taken the port; then listening tries another port.
func (r *Rig) listening(ctx context.Context, start func(port int) (*devserver.Process, error),
	ready func(ctx context.Context, port int) error) (int, error) {
	var ended error
	for range portTries {
		port, err := devserver.FreePort()
		if err != nil {
			return 0, err
		}
		p, err := start(port)
		if err != nil {
			return 0, err
		}
		err = Until(ctx, startTimeout, func(ctx context.Context) error {
			select {
			case <-p.Done():
				return devserver.Permanent(fmt.Errorf("%w: exit code %d", errEnded, p.ExitCode()))
			default:
				return ready(ctx, port)
			}
		})
		if !errors.Is(err, errEnded) {
			return port, err
		}
		ended = errors.Join(err, r.Died())
		r.forget(p)
	}
	return 0, ended
}

// errEnded means that a server ended before it was ready.
var errEnded = errors.New("the server ended at its start")

func (r *Rig) forget(p *devserver.Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.processes = slices.DeleteFunc(r.processes, func(q process) bool { return q.Process == p })
}

// Until polls f until it returns nil. It returns f's last error once timeout is over or ctx ends, and at once if the
// error is permanent.
func Until(ctx context.Context, timeout time.Duration, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return devserver.Until(ctx, timeout, func() error { return f(ctx) })
}

func tail(file string) string {
	const most = 2000
	text, err := os.ReadFile(filepath.Clean(file))
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(text[max(0, len(text)-most):]))
}
