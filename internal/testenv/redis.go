package testenv

import (
	"bufio"
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
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/deploy"
	"github.com/timerd-io/timerd/internal/child"
)

// stopGrace is how long a redis-server may take to end after SIGTERM before it is killed.
const stopGrace = 5 * time.Second

// RedisServer is a redis-server, or valkey-server, child process. It runs with deploy/redis.conf,
// an append-only file in a directory of its own, and DEBUG allowed.
//
// Methods that start, stop or signal the process are for the test's goroutine; Addr, URL, Dir and
// Log may be called from any.
type RedisServer struct {
	t      testing.TB
	binary string
	dir    string
	lines  []string // settings in force after deploy/redis.conf
	acl    string
	port   int
	bus    int // port of the cluster bus

	mu      sync.Mutex
	proc    *child.Process // nil when stopped
	control *redis.Client  // see admin
}

// RedisOption changes how Redis starts a server.
type RedisOption func(*RedisServer)

// RedisConfig sets one directive, as redis.conf would: RedisConfig("hz", "100"). The last one wins
// over deploy/redis.conf and over earlier options. Relative paths are relative to Dir.
func RedisConfig(name string, values ...string) RedisOption {
	return func(s *RedisServer) { s.lines = append(s.lines, directive(name, values...)) }
}

// RedisACL gives the server an ACL file with this content. Connect with Client's configure
// functions or with a URL that names a user; a switched-off default user is fine.
func RedisACL(content string) RedisOption {
	return func(s *RedisServer) { s.acl = content }
}

// Redis starts a server, waits until it answers, and stops it when t ends. When t has failed, the
// end of the server's log is added to t's output.
func Redis(t testing.TB, opts ...RedisOption) *RedisServer {
	t.Helper()
	binary, err := redisBinary()
	if err != nil {
		t.Fatal(err)
	}
	s := &RedisServer{t: t, binary: binary, dir: tempDir(t, "redis")}
	for _, opt := range opts {
		opt(s)
	}
	t.Cleanup(s.cleanup)
	for range portTries {
		if s.port, err = freePort(); err != nil {
			break
		}
		if err = s.start(); !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Addr returns host:port. It stays the same over restarts.
func (s *RedisServer) Addr() string { return address(s.port) }

// URL returns the server's go-redis URL for a database.
func (s *RedisServer) URL(db int) string { return fmt.Sprintf("redis://%s/%d", s.Addr(), db) }

// UserURL is URL with a user and password of the server's ACL file.
func (s *RedisServer) UserURL(user, password string, db int) string {
	u := url.URL{Scheme: "redis", User: url.UserPassword(user, password), Host: s.Addr(), Path: fmt.Sprint(db)}
	return u.String()
}

// Dir returns the server's working directory: its AOF, redis.conf and redis.log.
func (s *RedisServer) Dir() string { return s.dir }

// Log returns the end of the server's log.
func (s *RedisServer) Log() string { return tail(s.logFile()) }

// Client returns a new client of database 0 that is closed when the test ends. Each configure
// function may change its options: the database, the user, the time limits.
func (s *RedisServer) Client(configure ...func(*redis.Options)) *redis.Client {
	s.t.Helper()
	o := &redis.Options{Addr: s.Addr()}
	for _, f := range configure {
		f(o)
	}
	c := redis.NewClient(o)
	s.t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
			s.t.Errorf("testenv: closing a Redis client: %v", err)
		}
	})
	return c
}

// admin returns a client that the helpers here share.
func (s *RedisServer) admin() *redis.Client {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.control == nil {
		s.control = s.Client()
	}
	return s.control
}

// Pid returns the id of the running process, 0 when the server is stopped.
func (s *RedisServer) Pid() int {
	if c := s.running(); c != nil {
		return c.Pid()
	}
	return 0
}

// Kill ends the process with SIGKILL, as a crash would, and returns once it is gone.
func (s *RedisServer) Kill() {
	s.t.Helper()
	s.signal(syscall.SIGKILL)
	s.gone(stopGrace)
}

// Stop ends the process with SIGTERM, so that it shuts down in good order, and returns once it is
// gone. A server that is paused or that takes too long is an error.
func (s *RedisServer) Stop() {
	s.t.Helper()
	s.signal(syscall.SIGTERM)
	s.gone(stopGrace)
}

// Start starts a stopped server again, on the same port with the same directory, and returns once
// it has loaded its data and answers.
func (s *RedisServer) Start() {
	s.t.Helper()
	if s.running() != nil {
		s.t.Fatalf("testenv: the server at %s runs already", s.Addr())
	}
	deadline := time.Now().Add(startTimeout)
	for {
		err := s.start()
		if err == nil {
			return
		}
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(deadline) {
			s.t.Fatal(err)
		}
	}
}

// Restart is Stop and Start.
func (s *RedisServer) Restart() {
	s.t.Helper()
	s.Stop()
	s.Start()
}

// Pause freezes the process with SIGSTOP: connections stay open and nothing answers.
func (s *RedisServer) Pause() {
	s.t.Helper()
	s.signal(syscall.SIGSTOP)
}

// Resume lets a paused process go on.
func (s *RedisServer) Resume() {
	s.t.Helper()
	s.signal(syscall.SIGCONT)
}

// Version returns the server's own version: "7.0.15", or Valkey's "8.1.1".
func (s *RedisServer) Version() string {
	s.t.Helper()
	for field := range strings.FieldsSeq(s.versionLine()) {
		if v, ok := strings.CutPrefix(field, "v="); ok {
			return v
		}
	}
	s.t.Fatalf("testenv: no version in %q of %s --version", s.versionLine(), s.binary)
	return ""
}

// IsValkey reports whether the server is Valkey.
func (s *RedisServer) IsValkey() bool {
	s.t.Helper()
	return strings.HasPrefix(strings.ToLower(s.versionLine()), "valkey")
}

func (s *RedisServer) versionLine() string {
	s.t.Helper()
	out, err := exec.Command(s.binary, "--version").Output()
	if err != nil {
		s.t.Fatalf("testenv: %s --version: %v", s.binary, err)
	}
	return strings.TrimSpace(string(out))
}

// start starts the process on s.port. Its error is EADDRINUSE when the port is taken.
func (s *RedisServer) start() error {
	if err := s.configure(); err != nil {
		return err
	}
	cmd := exec.Command(s.binary, s.confFile())
	cmd.Dir = s.dir
	proc, err := child.Start(cmd)
	if err != nil {
		return fmt.Errorf("testenv: starting %s: %w", s.binary, err)
	}
	s.mu.Lock()
	s.proc = proc
	s.mu.Unlock()
	err = poll(startTimeout, func() error {
		select {
		case <-proc.Done():
			return nil
		default:
			return answers(s.Addr())
		}
	})
	if err != nil {
		return fmt.Errorf("testenv: %s at %s did not answer: %w\n%s", s.binary, s.Addr(), err, s.Log())
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
	return fmt.Errorf("testenv: %s ended at its start on %s: %w\n%s", s.binary, s.Addr(), cause, s.Log())
}

// configure writes the server's redis.conf, and its ACL file unless that is there already: the
// server may have rewritten it. The log starts anew.
func (s *RedisServer) configure() error {
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
				return fmt.Errorf("testenv: %w", err)
			}
		}
		lines = append(lines, directive("aclfile", path))
	}
	text := strings.Join(append(lines, s.lines...), "\n") + "\n"
	if err := os.WriteFile(s.confFile(), []byte(text), 0o600); err != nil {
		return fmt.Errorf("testenv: %w", err)
	}
	if err := os.WriteFile(s.logFile(), nil, 0o600); err != nil {
		return fmt.Errorf("testenv: %w", err)
	}
	return nil
}

func (s *RedisServer) confFile() string { return filepath.Join(s.dir, "redis.conf") }
func (s *RedisServer) logFile() string  { return filepath.Join(s.dir, "redis.log") }

func (s *RedisServer) running() *child.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

func (s *RedisServer) signal(sig syscall.Signal) {
	s.t.Helper()
	c := s.running()
	if c == nil {
		s.t.Fatalf("testenv: %v for the server at %s, which is stopped", sig, s.Addr())
	}
	if err := c.Signal(sig); err != nil {
		s.t.Fatalf("testenv: %v for the server at %s: %v\n%s", sig, s.Addr(), err, s.Log())
	}
}

// gone waits for the process to end and fails the test if it does not.
func (s *RedisServer) gone(within time.Duration) {
	s.t.Helper()
	select {
	case <-s.running().Done():
	case <-time.After(within):
		s.t.Fatalf("testenv: the server at %s, pid %d, did not end within %v\n%s", s.Addr(), s.Pid(), within, s.Log())
	}
	s.mu.Lock()
	s.proc = nil
	s.mu.Unlock()
}

// cleanup ends the process for good, whatever state it is in. SIGTERM comes first so that the
// server can end a fork that is writing a snapshot.
func (s *RedisServer) cleanup() {
	if s.t.Failed() {
		s.t.Logf("end of the log of the server at %s:\n%s", s.Addr(), s.Log())
	}
	c := s.running()
	if c == nil {
		return
	}
	if err := c.Signal(syscall.SIGCONT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.t.Errorf("testenv: resuming pid %d: %v", c.Pid(), err)
	}
	if err := c.Stop(stopGrace); err != nil {
		s.t.Errorf("testenv: stopping pid %d: %v", c.Pid(), err)
	}
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
