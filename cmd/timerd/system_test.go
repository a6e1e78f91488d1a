package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/ports"
	"github.com/timerd-io/timerd/internal/redisserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// patience bounds every wait of these tests on a slow machine. It says nothing
// about how long things should take.
const patience = 60 * time.Second

// secret is to show nowhere.
const secret = "s3cr3t"

// mainVariable makes the test binary be timerd itself.
const mainVariable = "TIMERD_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainVariable) != "" {
		main()
	}
	// The parallel tests wait for most of their time, however many processors there are.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	os.Exit(m.Run()) //nolint:forbidigo // as the testing package has it
}

// system is a Redis, a NATS and any number of timerd processes.
type system struct {
	t     testing.TB
	redis *testenv.RedisServer
	nats  *testenv.NATSServer
	rdb   *redis.Client
	js    jetstream.JetStream
	env   map[string]string
}

func newSystem(t testing.TB, opts ...redisserver.Option) *system {
	t.Helper()
	s := &system{t: t, redis: testenv.Redis(t, opts...), nats: testenv.NATS(t)}
	s.rdb, s.js = s.redis.Client(), s.nats.JetStream()
	s.env = map[string]string{
		"TIMERD_REDIS_URL":  s.redis.URL(0),
		"TIMERD_NATS_URL":   s.nats.URL(),
		"TIMERD_NAMESPACES": "*",
		"TIMERD_LEASE":      "2s",
	}
	return s
}

// daemon is one running timerd process.
type daemon struct {
	t    testing.TB
	cmd  *exec.Cmd
	log  *testenv.Output
	addr string
	done chan struct{}
}

// launch starts a process. Settings are "NAME=value" and come on top of s.env.
func (s *system) launch(settings ...string) *daemon {
	s.t.Helper()
	return s.launchCommand(nil, settings...)
}

// launchCommand is launch for a command of timerd.
func (s *system) launchCommand(args []string, settings ...string) *daemon {
	s.t.Helper()
	addr := freeAddr(s.t)
	env := maps.Clone(s.env)
	env["TIMERD_HTTP_ADDR"] = addr
	env[mainVariable] = "1"
	env["PATH"] = os.Getenv("PATH")
	for _, setting := range settings {
		name, value, _ := strings.Cut(setting, "=")
		env[name] = value
	}
	p := &daemon{t: s.t, cmd: exec.Command(os.Args[0], args...), log: &testenv.Output{}, addr: addr, done: make(chan struct{})}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		p.cmd.Env = append(p.cmd.Env, name+"="+env[name])
	}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	if err := p.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // the tests look at the exit code
	}()
	s.t.Cleanup(func() {
		p.kill()
		if s.t.Failed() {
			s.t.Logf("timerd %d said:\n%s", p.cmd.Process.Pid, p.log)
		}
	})
	return p
}

// start launches a process and waits until it is ready.
func (s *system) start(settings ...string) *daemon {
	s.t.Helper()
	p := s.launch(settings...)
	p.awaitReady(true)
	return p
}

// kill ends the process as kill -9 does.
func (p *daemon) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// stop ends the process as an operator does, and checks how it ended.
func (p *daemon) stop() {
	p.t.Helper()
	began := time.Now()
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatal("timerd did not stop")
	}
	if took := time.Since(began); took > 10*time.Second {
		p.t.Errorf("timerd took %s to stop, want at most 10s", took)
	}
	if code := p.cmd.ProcessState.ExitCode(); code != exitOK {
		p.t.Errorf("exit code %d, want 0", code)
	}
}

func (p *daemon) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// get asks the process over HTTP.
func (p *daemon) get(path string) (status int, body string, err error) {
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get("http://" + p.addr + path)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// awaitReady waits until the process says that it is ready, or that it is not.
func (p *daemon) awaitReady(want bool) {
	p.t.Helper()
	testenv.Eventually(p.t, patience, func() error {
		select {
		case <-p.done:
			p.t.Fatalf("timerd ended with exit code %d", p.cmd.ProcessState.ExitCode())
		default:
		}
		status, body, err := p.get("/readyz")
		if err != nil {
			return err
		}
		if (status == http.StatusOK) != want {
			return fmt.Errorf("/readyz: %d %s", status, body)
		}
		return nil
	}, fmt.Sprintf("readiness to be %v", want))
}

// freeAddr returns an address that nobody listens on at the moment.
func freeAddr(t testing.TB) string {
	t.Helper()
	port, err := ports.Free()
	if err != nil {
		t.Fatal(err)
	}
	return ports.Address(port)
}

// do runs a Redis command.
func (s *system) do(args ...any) any {
	s.t.Helper()
	reply, err := s.rdb.Do(s.t.Context(), args...).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		s.t.Fatalf("%q: %v", args, err)
	}
	return reply
}

// due returns when a key runs out, in unix ms.
func (s *system) due(key string) int64 {
	s.t.Helper()
	at, err := s.rdb.PExpireTime(s.t.Context(), key).Result()
	if err != nil || at < 0 {
		s.t.Fatalf("%q has no TTL: %v, %v", key, at, err)
	}
	return at.Milliseconds()
}

// now returns the server's clock in unix ms.
func (s *system) now() int64 {
	s.t.Helper()
	now, err := s.rdb.Time(s.t.Context()).Result()
	if err != nil {
		s.t.Fatal(err)
	}
	return now.UnixMilli()
}

// after waits until the server's clock is past the given unix ms.
func (s *system) after(ms int64) {
	s.t.Helper()
	testenv.Eventually(s.t, patience, func() bool {
		now, err := s.rdb.Time(context.WithoutCancel(s.t.Context())).Result()
		return err == nil && now.UnixMilli() > ms
	}, "the clock to pass")
}

// adopted waits until the index holds a plain key as it is now.
func (s *system) adopted(key string) {
	s.t.Helper()
	testenv.Eventually(s.t, patience, func() error {
		at, err := s.rdb.ZScore(s.t.Context(), keys.Single.Due(), key).Result()
		if err != nil {
			return err
		}
		if want := s.due(key); int64(at) != want {
			return fmt.Errorf("due at %.0f, want %d", at, want)
		}
		return nil
	}, "adoption of "+key)
}

// collect follows the fired events.
func (s *system) collect() *testenv.Collector {
	s.t.Helper()
	return testenv.Collect(s.t, s.js, "TIMERS")
}

// events waits for n events and returns them decoded, after checking what holds
// for every event: its id is its message's id and unique, its subject its key's,
// and it was not published before it was due.
func (s *system) events(c *testenv.Collector, n int) []event.Event {
	s.t.Helper()
	var all []event.Event
	for _, m := range c.Wait(n, patience) {
		e, err := event.Parse(m.Data)
		if err != nil {
			s.t.Fatalf("message %q: %v", m.Data, err)
		}
		if e.ID != m.ID() {
			s.t.Errorf("event %s in message %s", e.ID, m.ID())
		}
		if want := e.Key.Subject("timers", keys.Fired); m.Subject != want {
			s.t.Errorf("event %s on %s, want %s", e.ID, m.Subject, want)
		}
		if e.Time.Before(e.Due) {
			s.t.Errorf("event %s was published %s before it was due", e.ID, e.Due.Sub(e.Time))
		}
		if want := keys.EventID(e.Key.String(), e.Due.UnixMilli(), e.Attempt); e.ID != want {
			s.t.Errorf("event %s, want id %s", e.ID, want)
		}
		all = append(all, e)
	}
	if d := c.DuplicateIDs(); len(d) > 0 {
		s.t.Errorf("in the stream more than once: %q", d)
	}
	return all
}

// payloads returns "key=payload" of events, sorted; a missing payload is its
// status in angle brackets.
func payloads(all []event.Event) []string {
	var out []string
	for _, e := range all {
		data := string(e.Data)
		if e.Status != "" {
			data = "<" + e.Status + ">"
		}
		out = append(out, e.Key.String()+"="+data)
	}
	slices.Sort(out)
	return out
}

// expect waits for exactly these events, given as payloads does.
func (s *system) expect(c *testenv.Collector, want ...string) []event.Event {
	s.t.Helper()
	all := s.events(c, len(want))
	slices.Sort(want)
	if got := payloads(all); !slices.Equal(got, want) {
		s.t.Fatalf("fired\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
	return all
}

// settled waits until the index holds nothing but tombstones.
func (s *system) settled() {
	s.t.Helper()
	p := keys.Single
	testenv.Eventually(s.t, patience, func() error {
		for _, name := range []string{p.Due(), p.Data(), p.Firing(), p.FiringData()} {
			if n := s.rdb.Exists(s.t.Context(), name).Val(); n != 0 {
				text, _ := json.Marshal(s.rdb.ZRange(s.t.Context(), p.Due(), 0, 9).Val())
				return fmt.Errorf("%s is not empty; due: %s", name, text)
			}
		}
		return nil
	}, "the index to be empty")
}
