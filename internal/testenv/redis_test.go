package testenv_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
)

func TestRedisKillKeepsAcknowledgedWrites(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := testenv.Redis(t)
	c := s.Client()
	if err := c.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	addr, first := s.Addr(), s.Pid()

	s.Kill()
	if err := c.Ping(ctx).Err(); err == nil {
		t.Fatal("PING answered after Kill")
	}
	if s.Pid() != 0 {
		t.Errorf("Pid() = %d after Kill, want 0", s.Pid())
	}
	s.Start()
	if s.Addr() != addr {
		t.Errorf("Addr() = %s after a restart, want %s", s.Addr(), addr)
	}
	if s.Pid() == first || s.Pid() == 0 {
		t.Errorf("Pid() = %d after a restart, was %d", s.Pid(), first)
	}
	if got, err := c.Get(ctx, "k").Result(); err != nil || got != "v" {
		t.Errorf("GET after Kill and Start = %q, %v; want v", got, err)
	}
	s.Restart()
	if got, err := c.Get(ctx, "k").Result(); err != nil || got != "v" {
		t.Errorf("GET after Restart = %q, %v; want v", got, err)
	}
}

func TestRedisRunsWithTheShippedSettings(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t, devserver.Directive("hz", "50"), devserver.Directive("save", "900 1"))
	got, err := s.Client().ConfigGet(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"appendonly":       "yes",
		"maxmemory-policy": "noeviction",
		"hz":               "50",
		"save":             "900 1",
		"bind":             "127.0.0.1",
	} {
		if got[name] != want {
			t.Errorf("%s = %q, want %q", name, got[name], want)
		}
	}
	flags := got["notify-keyspace-events"]
	for _, flag := range "KEg$xeh" {
		if !strings.ContainsRune(flags, flag) {
			t.Errorf("notify-keyspace-events = %q, lacks %q", flags, flag)
		}
	}
	if v := s.Version(); !strings.Contains(v, ".") {
		t.Errorf("Version() = %q", v)
	}
	if name := strings.ToLower(s.Log()); s.IsValkey() != strings.Contains(name, "valkey") {
		t.Errorf("IsValkey() = %t, but the log says:\n%s", s.IsValkey(), s.Log())
	}
}

func TestRedisACL(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := testenv.Redis(t, devserver.ACL("user default off\nuser app on >p:w/d ~* +@all\n"))
	if err := s.Client().Ping(ctx).Err(); err == nil {
		t.Error("PING without a password was accepted")
	}
	o, err := redis.ParseURL(s.UserURL("app", "p:w/d", 3))
	if err != nil {
		t.Fatal(err)
	}
	if o.DB != 3 {
		t.Errorf("UserURL names database %d, want 3", o.DB)
	}
	c := s.Client(func(into *redis.Options) { *into = *o })
	if err := c.Ping(ctx).Err(); err != nil {
		t.Errorf("PING as app: %v", err)
	}
	s.Restart()
	if err := c.Ping(ctx).Err(); err != nil {
		t.Errorf("PING as app after a restart: %v", err)
	}
}

func TestRedisPauseAnswersNothing(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	c := s.Client(func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = 200*time.Millisecond, -1 })
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	s.Pause()
	err := c.Ping(t.Context()).Err()
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("PING of a paused server: %v, want a timeout", err)
	}
	s.Resume()
	testenv.Eventually(t, time.Minute, func() error { return c.Ping(t.Context()).Err() }, "PING after Resume")
	s.Pause() // cleanup ends a paused server too
}

// Both kinds of end are run in a test binary of their own: a failing test, and one that is killed.
const scenarioEnv = "TESTENV_SCENARIO"

func TestNoProcessIsLeft(t *testing.T) {
	t.Parallel()
	if scenario := os.Getenv(scenarioEnv); scenario != "" {
		leaveProcess(t, scenario)
		return
	}
	scenarios := []string{"fail"}
	if runtime.GOOS == "linux" {
		scenarios = append(scenarios, "killed")
	}
	for _, scenario := range scenarios {
		t.Run(scenario, func(t *testing.T) {
			pidFile := filepath.Join(t.TempDir(), "pid")
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestNoProcessIsLeft$", "-test.v")
			cmd.Env = append(os.Environ(), scenarioEnv+"="+scenario+" "+pidFile)
			if out, err := cmd.CombinedOutput(); err == nil {
				t.Fatalf("the inner test passed:\n%s", out)
			}
			b, err := os.ReadFile(pidFile)
			if err != nil {
				t.Fatal(err)
			}
			pid, err := strconv.Atoi(string(b))
			if err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, time.Minute, func() bool {
				return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
			}, "the end of the server with pid "+string(b))
		})
	}
}

func leaveProcess(t *testing.T, scenario string) {
	name, pidFile, _ := strings.Cut(scenario, " ")
	s := testenv.Redis(t)
	if err := os.WriteFile(pidFile, []byte(strconv.Itoa(s.Pid())), 0o600); err != nil {
		t.Fatal(err)
	}
	if name == "killed" {
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("this test fails on purpose")
}
