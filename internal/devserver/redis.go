// Package devserver starts servers on this machine, for `timerd dev`, tests, torture and bench. It is the only code
// that starts redis-server, or valkey-server. They are child processes, which the kernel ends with this process on
// Linux, and can be killed, paused and started again. It also finds free ports, and polls for conditions without a
// signal. Clusters, sentinels and faults are in internal/testenv/lab.
package devserver

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/timerd-io/timerd/deploy"
)

const (
	// startTimeout bounds the time from a server's start to its first answer. It is generous, for the race detector and
	// busy machines.
	startTimeout = time.Minute
	// stopGrace is the time after SIGTERM before Close kills a server, and endTimeout bounds the wait of Kill and Stop.
	stopGrace  = 5 * time.Second
	endTimeout = time.Minute
	// answerTimeout bounds one answer of a server, or of another program on its port.
	answerTimeout = 5 * time.Second
)

// Redis is a child process that runs redis-server, or valkey-server. It uses deploy/redis.conf and keeps its data in a
// directory of its own.
//
// Methods that start, stop or signal the process are for one goroutine at a time; the others may be called from any
// goroutine.
type Redis struct {
	binary     string
	parent     string
	directives []string // in force after deploy/redis.conf
	acl        string
	variables  []string // of its environment, on top of this process's
	sentinel   bool     // a sentinel, whose directives are all that it has

	dir   string
	port  int
	admin *redis.Client

	process atomic.Pointer[Process] // nil when stopped
}

// StartRedis starts a server and waits until it answers and has loaded its data. The caller closes it; after an error
// nothing is left behind. The end of ctx ends the waiting, not the server.
func StartRedis(ctx context.Context, opts ...RedisOption) (*Redis, error) {
	s := &Redis{}
	for _, opt := range opts {
		opt(s)
	}
	var err error
	if s.binary == "" {
		s.binary, err = FindRedis()
	} else {
		s.binary, err = exec.LookPath(s.binary)
	}
	if err != nil {
		return nil, fmt.Errorf("devserver: %w", err)
	}
	// Short, so that the path of a Unix socket fits in it.
	if s.dir, err = os.MkdirTemp(s.parent, "timerd-redis-"); err != nil {
		return nil, fmt.Errorf("devserver: %w", err)
	}
	if s.port != 0 {
		err = s.start(ctx)
	} else {
		err = OnFreePort(func(port int) error {
			s.port = port
			return s.start(ctx)
		})
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.admin = redis.NewClient(&redis.Options{
		Addr: s.Addr(), ReadTimeout: answerTimeout, DialerRetries: 1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	return s, nil
}

// Addr returns host:port. It stays the same over restarts.
func (s *Redis) Addr() string { return Address(s.port) }

// Port returns the port that the server listens on, or will when it is started.
func (s *Redis) Port() int { return s.port }

// URL returns the server's go-redis URL for a database.
func (s *Redis) URL(db int) string { return fmt.Sprintf("redis://%s/%d", s.Addr(), db) }

// UserURL is URL with a user and password of the server's ACL file.
func (s *Redis) UserURL(user, password string, db int) string {
	u := url.URL{Scheme: "redis", User: url.UserPassword(user, password), Host: s.Addr(), Path: fmt.Sprint(db)}
	return u.String()
}

// Admin returns a client of the server, as its default user. It ends with the server.
func (s *Redis) Admin() *redis.Client { return s.admin }

// Program returns the path of the server's program.
func (s *Redis) Program() string { return s.binary }

// Dir returns the server's working directory: its AOF, redis.conf and redis.log.
func (s *Redis) Dir() string { return s.dir }

// Log returns the end of the server's log, or why there is none.
func (s *Redis) Log() string {
	const most = 40 // lines
	log, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}

// Pid returns the id of the running process, 0 when the server is stopped.
func (s *Redis) Pid() int {
	if c := s.process.Load(); c != nil {
		return c.Pid()
	}
	return 0
}

// Done is closed once the present process has ended. It is nil for a stopped server.
func (s *Redis) Done() <-chan struct{} {
	if c := s.process.Load(); c != nil {
		return c.Done()
	}
	return nil
}

// ExitCode returns the exit code of the process, -1 if a signal ended it. Call it after Done is closed.
func (s *Redis) ExitCode() int { return s.process.Load().ExitCode() }

// Role returns "master", "slave" or "sentinel", and "" for a server that does not answer. It does not ask a stopped
// server: go-redis would log each refused connection.
func (s *Redis) Role(ctx context.Context) string {
	if s.process.Load() == nil {
		return ""
	}
	reply, err := s.admin.Do(ctx, "ROLE").Slice()
	if err != nil || len(reply) == 0 {
		return ""
	}
	role, _ := reply[0].(string)
	return role
}

// Kill ends the process with SIGKILL, as a crash would, and returns once it is gone.
func (s *Redis) Kill() error { return s.end(syscall.SIGKILL) }

// Stop ends the process with SIGTERM, so that it shuts down in good order, and returns once it is gone. A server that
// is paused or takes too long is an error.
func (s *Redis) Stop() error { return s.end(syscall.SIGTERM) }

// Start starts a stopped server again, on the same port with the same directory, and returns once it has loaded its
// data and answers.
func (s *Redis) Start(ctx context.Context) error {
	if s.process.Load() != nil {
		return fmt.Errorf("devserver: the server at %s runs already", s.Addr())
	}
	return Until(ctx, startTimeout, func() error {
		err := s.start(ctx)
		if err != nil && !errors.Is(err, syscall.EADDRINUSE) {
			err = Permanent(err)
		}
		return err
	})
}

// Pause freezes the process with SIGSTOP: connections stay open and nothing answers.
func (s *Redis) Pause() error { return s.signal(syscall.SIGSTOP) }

// Resume lets a paused process go on.
func (s *Redis) Resume() error { return s.signal(syscall.SIGCONT) }

// VersionLine returns the binary's own version line: "Redis server v=7.0.15 …".
func (s *Redis) VersionLine() (string, error) {
	out, err := exec.Command(s.binary, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("devserver: %s --version: %w", s.binary, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Close ends the process for good, whatever state it is in, and removes its directory. SIGTERM comes first so that the
// server can end a fork that is writing a snapshot.
func (s *Redis) Close() error {
	var errs []error
	if s.admin != nil {
		errs = append(errs, s.admin.Close())
	}
	if c := s.process.Load(); c != nil {
		if err := c.Signal(syscall.SIGCONT); !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, err)
		}
		errs = append(errs, c.Stop(stopGrace))
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// start starts the process on s.port. Its error wraps syscall.EADDRINUSE if the port is taken.
func (s *Redis) start(ctx context.Context) error {
	if err := s.configure(); err != nil {
		return fmt.Errorf("devserver: %w", err)
	}
	args := []string{s.confFile()}
	if s.sentinel {
		args = append(args, "--sentinel")
	}
	cmd := exec.Command(s.binary, args...)
	cmd.Dir = s.dir
	cmd.Env = append(cmd.Environ(), s.variables...)
	proc, err := StartProcess(cmd)
	if err != nil {
		return fmt.Errorf("devserver: starting %s: %w", s.binary, err)
	}
	s.process.Store(proc)
	err = Until(ctx, startTimeout, func() error {
		select {
		case <-proc.Done():
			return nil
		default:
			return answers(s.Addr(), proc.Pid())
		}
	})
	select {
	case <-proc.Done():
	default:
		if err != nil {
			err = fmt.Errorf("devserver: %s at %s did not answer: %w\n%s", s.binary, s.Addr(), err, s.Log())
		}
		return err
	}
	s.process.Store(nil)
	cause := fmt.Errorf("exit code %d", proc.ExitCode())
	if strings.Contains(s.Log(), "Address already in use") {
		cause = syscall.EADDRINUSE
	}
	return fmt.Errorf("devserver: %s ended at its start on %s: %w\n%s", s.binary, s.Addr(), cause, s.Log())
}

// answers returns nil if the process with this id listens on addr and has loaded its data. It asks another server that
// took the port for its process id only. A server whose ACL refuses the request counts as the right one. It does not
// use go-redis, which would log each refused connection.
func answers(addr string, pid int) (err error) {
	conn, err := net.DialTimeout("tcp", addr, answerTimeout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if err := conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("INFO server persistence\r\n")); err != nil {
		return err
	}
	reply := bufio.NewReader(conn)
	first, err := reply.ReadString('\n')
	if err != nil {
		return err
	}
	if strings.HasPrefix(first, "-NOAUTH") || strings.HasPrefix(first, "-NOPERM") {
		return nil
	}
	var length int
	if _, err := fmt.Sscanf(first, "$%d\r\n", &length); err != nil {
		return fmt.Errorf("answered INFO with %q", strings.TrimSpace(first))
	}
	info := make([]byte, length)
	if _, err := io.ReadFull(reply, info); err != nil {
		return err
	}
	switch {
	case !bytes.Contains(info, fmt.Appendf(nil, "\r\nprocess_id:%d\r\n", pid)):
		return errors.New("another server has taken the port")
	case bytes.Contains(info, []byte("\r\nloading:1\r\n")):
		return errors.New("it is loading its data")
	}
	return nil
}

// configure writes the server's redis.conf, and its ACL file unless that exists: the server may have rewritten it. It
// empties the log.
func (s *Redis) configure() error {
	lines := []string{
		directive("port", strconv.Itoa(s.port)),
		directive("bind", "127.0.0.1"),
		directive("dir", s.dir),
		directive("logfile", s.logFile()),
	}
	if !s.sentinel {
		lines = append([]string{deploy.RedisConf()}, lines...)
	}
	if s.acl != "" {
		path := filepath.Join(s.dir, "users.acl")
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			if err := os.WriteFile(path, []byte(s.acl), 0o600); err != nil {
				return err
			}
		}
		lines = append(lines, directive("aclfile", path))
	}
	text := strings.Join(append(lines, s.directives...), "\n") + "\n"
	return errors.Join(os.WriteFile(s.confFile(), []byte(text), 0o600), os.WriteFile(s.logFile(), nil, 0o600))
}

func (s *Redis) confFile() string { return filepath.Join(s.dir, "redis.conf") }
func (s *Redis) logFile() string  { return filepath.Join(s.dir, "redis.log") }

func (s *Redis) signal(sig syscall.Signal) error {
	c := s.process.Load()
	if c == nil {
		return fmt.Errorf("devserver: %v for the server at %s, which is stopped", sig, s.Addr())
	}
	if err := c.Signal(sig); err != nil {
		return fmt.Errorf("devserver: %v for the server at %s: %w\n%s", sig, s.Addr(), err, s.Log())
	}
	return nil
}

// end ends the process with a signal and waits until it is gone.
func (s *Redis) end(sig syscall.Signal) error {
	if err := s.signal(sig); err != nil {
		return err
	}
	select {
	case <-s.process.Load().Done():
	case <-time.After(endTimeout):
		return fmt.Errorf("devserver: the server at %s, pid %d, did not end within %v\n%s", s.Addr(), s.Pid(),
			endTimeout, s.Log())
	}
	s.process.Store(nil)
	return nil
}
