// Package redisserver runs a redis-server, or valkey-server, that can be killed, stopped and started
// again.
package redisserver

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/timerd-io/timerd/deploy"
	"github.com/timerd-io/timerd/internal/child"
	"github.com/timerd-io/timerd/internal/poll"
	"github.com/timerd-io/timerd/internal/ports"
)

const (
	// startTimeout bounds how long a server may take to answer after its start. It is generous: the
	// race detector and a busy machine share it.
	startTimeout = 20 * time.Second
	// stopGrace is how long one may take to end after SIGTERM before it is killed.
	stopGrace = 5 * time.Second
)

// Server is a redis-server, or valkey-server, child process. It runs with deploy/redis.conf,
// an append-only file in a directory of its own, and DEBUG allowed.
//
// Methods that start, stop or signal the process are for one goroutine at a time; Addr, URL, Dir, Log
// and Pid may be called from any.
type Server struct {
	binary string
	dir    string
	lines  []string // settings in force after deploy/redis.conf
	acl    string
	port   int

	mu   sync.Mutex
	proc *child.Process // nil when stopped
}

// Option changes how New starts a server.
type Option func(*Server)

// Config sets one directive, as redis.conf would: Config("hz", "100"). The last one wins
// over deploy/redis.conf and over earlier options. Relative paths are relative to Dir.
func Config(name string, values ...string) Option {
	return func(s *Server) { s.lines = append(s.lines, directive(name, values...)) }
}

// ACL gives the server an ACL file with this content. Connect with a URL
// that names a user; a switched-off default user is fine.
func ACL(content string) Option {
	return func(s *Server) { s.acl = content }
}

// New starts a server, on a port of its own and in a temporary directory, and waits until it
// answers. The caller closes it; after an error nothing is left behind.
func New(opts ...Option) (*Server, error) {
	binary, err := Binary()
	if err != nil {
		return nil, err
	}
	// Short, so that the path of a Unix socket fits in it.
	dir, err := os.MkdirTemp("", "timerd-redis-")
	if err != nil {
		return nil, fmt.Errorf("redisserver: %w", err)
	}
	s := &Server{binary: binary, dir: dir}
	for _, opt := range opts {
		opt(s)
	}
	for range ports.Tries {
		if s.port, err = ports.Free(); err != nil {
			break
		}
		if err = s.start(); !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Addr returns host:port. It stays the same over restarts.
func (s *Server) Addr() string { return ports.Address(s.port) }

// Port is that of Addr.
func (s *Server) Port() int { return s.port }

// URL returns the server's go-redis URL for a database.
func (s *Server) URL(db int) string { return fmt.Sprintf("redis://%s/%d", s.Addr(), db) }

// UserURL is URL with a user and password of the server's ACL file.
func (s *Server) UserURL(user, password string, db int) string {
	u := url.URL{Scheme: "redis", User: url.UserPassword(user, password), Host: s.Addr(), Path: fmt.Sprint(db)}
	return u.String()
}

// Dir returns the server's working directory: its AOF, redis.conf and redis.log.
func (s *Server) Dir() string { return s.dir }

// Log returns the end of the server's log.
func (s *Server) Log() string { return tail(s.logFile()) }

// Pid returns the id of the running process, 0 when the server is stopped.
func (s *Server) Pid() int {
	if c := s.running(); c != nil {
		return c.Pid()
	}
	return 0
}

// Kill ends the process with SIGKILL, as a crash would, and returns once it is gone.
func (s *Server) Kill() error { return s.end(syscall.SIGKILL) }

// Stop ends the process with SIGTERM, so that it shuts down in good order, and returns once it is
// gone. A server that is paused or that takes too long is an error.
func (s *Server) Stop() error { return s.end(syscall.SIGTERM) }

// Start starts a stopped server again, on the same port with the same directory, and returns once
// it has loaded its data and answers.
func (s *Server) Start() error {
	if s.running() != nil {
		return fmt.Errorf("redisserver: the server at %s runs already", s.Addr())
	}
	deadline := time.Now().Add(startTimeout)
	for {
		err := s.start()
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(deadline) {
			return err
		}
	}
}

// Pause freezes the process with SIGSTOP: connections stay open and nothing answers.
func (s *Server) Pause() error { return s.signal(syscall.SIGSTOP) }

// Resume lets a paused process go on.
func (s *Server) Resume() error { return s.signal(syscall.SIGCONT) }

// VersionLine returns what the binary says of itself: "Redis server v=7.0.15 …".
func (s *Server) VersionLine() (string, error) {
	out, err := exec.Command(s.binary, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("redisserver: %s --version: %w", s.binary, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Close ends the process for good, whatever state it is in, and removes its directory. SIGTERM comes
// first so that the server can end a fork that is writing a snapshot.
func (s *Server) Close() error {
	var err error
	if c := s.running(); c != nil {
		if err = c.Signal(syscall.SIGCONT); errors.Is(err, os.ErrProcessDone) {
			err = nil
		}
		err = errors.Join(err, c.Stop(stopGrace))
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// start starts the process on s.port. Its error is EADDRINUSE when the port is taken.
func (s *Server) start() error {
	if err := s.configure(); err != nil {
		return err
	}
	cmd := exec.Command(s.binary, s.confFile())
	cmd.Dir = s.dir
	proc, err := child.Start(cmd)
	if err != nil {
		return fmt.Errorf("redisserver: starting %s: %w", s.binary, err)
	}
	s.mu.Lock()
	s.proc = proc
	s.mu.Unlock()
	err = poll.Until(startTimeout, func() error {
		select {
		case <-proc.Done():
			return nil
		default:
			return answers(s.Addr())
		}
	})
	if err != nil {
		return fmt.Errorf("redisserver: %s at %s did not answer: %w\n%s", s.binary, s.Addr(), err, s.Log())
	}
	select {
	case <-proc.Done():
	default:
		return nil
	}
	s.mu.Lock()
	s.proc = nil
	s.mu.Unlock()
	cause := fmt.Errorf("exit code %d", proc.ExitCode())
	if strings.Contains(s.Log(), "Address already in use") {
		cause = syscall.EADDRINUSE
	}
	return fmt.Errorf("redisserver: %s ended at its start on %s: %w\n%s", s.binary, s.Addr(), cause, s.Log())
}

// configure writes the server's redis.conf, and its ACL file unless that is there already: the
// server may have rewritten it. The log starts anew.
func (s *Server) configure() error {
	lines := []string{
		deploy.RedisConf(),
		directive("port", fmt.Sprint(s.port)),
		directive("bind", "127.0.0.1"),
		directive("dir", s.dir),
		directive("logfile", s.logFile()),
		directive("enable-debug-command", "local"),
	}
	if s.acl != "" {
		path := filepath.Join(s.dir, "users.acl")
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			if err := os.WriteFile(path, []byte(s.acl), 0o600); err != nil {
				return fmt.Errorf("redisserver: %w", err)
			}
		}
		lines = append(lines, directive("aclfile", path))
	}
	text := strings.Join(append(lines, s.lines...), "\n") + "\n"
	if err := os.WriteFile(s.confFile(), []byte(text), 0o600); err != nil {
		return fmt.Errorf("redisserver: %w", err)
	}
	if err := os.WriteFile(s.logFile(), nil, 0o600); err != nil {
		return fmt.Errorf("redisserver: %w", err)
	}
	return nil
}

func (s *Server) confFile() string { return filepath.Join(s.dir, "redis.conf") }
func (s *Server) logFile() string  { return filepath.Join(s.dir, "redis.log") }

func (s *Server) running() *child.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

func (s *Server) signal(sig syscall.Signal) error {
	c := s.running()
	if c == nil {
		return fmt.Errorf("redisserver: %v for the server at %s, which is stopped", sig, s.Addr())
	}
	if err := c.Signal(sig); err != nil {
		return fmt.Errorf("redisserver: %v for the server at %s: %w\n%s", sig, s.Addr(), err, s.Log())
	}
	return nil
}

// end ends the process with a signal and waits until it is gone.
func (s *Server) end(sig syscall.Signal) error {
	if err := s.signal(sig); err != nil {
		return err
	}
	select {
	case <-s.running().Done():
	case <-time.After(stopGrace):
		return fmt.Errorf("redisserver: the server at %s, pid %d, did not end within %v\n%s", s.Addr(), s.Pid(), stopGrace, s.Log())
	}
	s.mu.Lock()
	s.proc = nil
	s.mu.Unlock()
	return nil
}

// answers reports whether a Redis server at addr has loaded its data. A refusal for want of a
// password is an answer too.
func answers(addr string) (err error) {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	reply, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	for _, ok := range []string{"+PONG", "-NOAUTH", "-NOPERM"} {
		if strings.HasPrefix(reply, ok) {
			return nil
		}
	}
	return fmt.Errorf("answered PING with %q", strings.TrimSpace(reply))
}

// directive formats one line of redis.conf; every value is quoted, so it may hold spaces and be empty.
func directive(name string, values ...string) string {
	var b strings.Builder
	b.WriteString(name)
	for _, v := range values {
		fmt.Fprintf(&b, " %q", v)
	}
	return b.String()
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
