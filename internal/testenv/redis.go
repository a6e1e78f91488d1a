package testenv

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv/lab"
)

// RedisServer is a redis-server, or valkey-server, child process. It runs with deploy/redis.conf,
// an append-only file in a directory of its own.
//
// Methods that start, stop or signal the process are for the test's goroutine; Addr, URL, Dir and
// Log may be called from any.
type RedisServer struct {
	*devserver.Redis
	t testing.TB
}

// Redis starts a server, waits until it answers, and stops it when t ends. When t has failed, the
// end of the server's log is added to t's output.
func Redis(t testing.TB, opts ...devserver.RedisOption) *RedisServer {
	t.Helper()
	server, err := devserver.StartRedis(t.Context(), append([]devserver.RedisOption{redisBinary()}, opts...)...)
	if err != nil {
		t.Fatalf("testenv: %v; `make deps` installs a redis-server, %s names another one", err, devserver.BinaryEnv)
	}
	t.Cleanup(func() { closeRedis(t, server) })
	return &RedisServer{Redis: server, t: t}
}

// redisBinary picks the server program that the tests are to run against.
func redisBinary() devserver.RedisOption { return devserver.Binary(os.Getenv(devserver.BinaryEnv)) }

// closeRedis ends servers at the end of a test. The logs are shown if it has failed.
func closeRedis(t testing.TB, servers ...*devserver.Redis) {
	t.Helper()
	for _, s := range servers {
		if t.Failed() {
			t.Logf("end of the log of the server at %s:\n%s", s.Addr(), s.Log())
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

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

// Kill is [devserver.Redis.Kill]; an error ends the test, as in the methods below.
func (s *RedisServer) Kill() {
	s.t.Helper()
	s.fatal(s.Redis.Kill())
}

// Stop is [devserver.Redis.Stop].
func (s *RedisServer) Stop() {
	s.t.Helper()
	s.fatal(s.Redis.Stop())
}

// Start is [devserver.Redis.Start].
func (s *RedisServer) Start() {
	s.t.Helper()
	s.fatal(s.Redis.Start(context.WithoutCancel(s.t.Context()))) // a cleanup may call it
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
	s.fatal(s.Redis.Pause())
}

// Resume lets a paused process go on.
func (s *RedisServer) Resume() {
	s.t.Helper()
	s.fatal(s.Redis.Resume())
}

// Version returns the server's own version: "7.0.15", or Valkey's "8.1.1".
func (s *RedisServer) Version() string {
	s.t.Helper()
	line := s.versionLine()
	for field := range strings.FieldsSeq(line) {
		if v, ok := strings.CutPrefix(field, "v="); ok {
			return v
		}
	}
	s.t.Fatalf("testenv: no version in %q", line)
	return ""
}

// IsValkey reports whether the server is Valkey.
func (s *RedisServer) IsValkey() bool {
	s.t.Helper()
	return strings.HasPrefix(strings.ToLower(s.versionLine()), "valkey")
}

func (s *RedisServer) versionLine() string {
	s.t.Helper()
	line, err := s.VersionLine()
	s.fatal(err)
	return line
}

func (s *RedisServer) fatal(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// Sentinel starts a sentinel that watches master, which has one replica, and takes it for dead after
// half a second without an answer. It returns timerd's URL for the master.
func Sentinel(t testing.TB, master *RedisServer) string {
	t.Helper()
	s, err := lab.StartSentinel(t.Context(), master.Addr(), 500*time.Millisecond, redisBinary())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s.URL()
}
