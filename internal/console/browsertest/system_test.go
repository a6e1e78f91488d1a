package browsertest

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/client/admin"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// stopTime bounds the stop of a timerd.
const stopTime = 15 * time.Second

// system is a Redis, a NATS and a timerd with its console.
type system struct {
	t        *testing.T
	redis    *testenv.RedisServer
	rdb      *redis.Client
	js       jetstream.JetStream
	timers   *client.Timers
	operator *admin.Operator
	url      string // of the console
	ready    string // URL
	env      []string
	timerd   *devserver.Process
	log      *testenv.Output
}

// newSystem starts all of it, to be stopped when the test ends. Settings are NAME=value.
func newSystem(t *testing.T, settings ...string) *system {
	t.Helper()
	nats := testenv.NATS(t)
	s := &system{t: t, redis: testenv.Redis(t), js: nats.JetStream(), log: &testenv.Output{}}
	s.rdb = s.redis.Client()
	s.timers, s.operator = client.New(s.rdb), admin.New(s.rdb)
	console, health := address(t), address(t)
	s.url, s.ready = "http://"+console, "http://"+health+"/readyz"
	s.env = append([]string{
		"TIMERD_REDIS_URL=" + s.redis.URL(0), "TIMERD_NATS_URL=" + nats.URL(), "TIMERD_NAMESPACES=*",
		"TIMERD_HTTP_ADDR=" + health,
		"TIMERD_CONSOLE_ADDR=" + console, "TIMERD_CONSOLE_ACTIONS=on", "PATH=" + os.Getenv("PATH"), "HOME=" +
			t.TempDir(),
	}, settings...)
	t.Cleanup(func() {
		s.stop()
		if t.Failed() {
			t.Logf("timerd said:\n%s", s.log)
		}
	})
	s.start()
	return s
}

// address returns one that nobody listens on.
func address(t *testing.T) string {
	t.Helper()
	port, err := devserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return devserver.Address(port)
}

// start starts timerd and waits until it is ready.
func (s *system) start() {
	s.t.Helper()
	cmd := exec.Command(os.Getenv(timerdVariable), "serve")
	cmd.Env, cmd.Stdout, cmd.Stderr = s.env, s.log, s.log
	var err error
	if s.timerd, err = devserver.StartProcess(cmd); err != nil {
		s.t.Fatal(err)
	}
	testenv.Eventually(s.t, patience, func() error {
		select {
		case <-s.timerd.Done():
			s.t.Fatalf("timerd ended with exit code %d", s.timerd.ExitCode())
		default:
		}
		req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.ready, http.NoBody)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", s.ready, resp.Status)
		}
		_ = resp.Body.Close()
		return err
	}, "timerd to be ready")
}

// stop ends timerd. A race that its detector found fails the test.
func (s *system) stop() {
	s.t.Helper()
	if s.timerd == nil {
		return
	}
	if err := s.timerd.Stop(stopTime); err != nil {
		s.t.Error(err)
	}
	if code := s.timerd.ExitCode(); code != 0 {
		s.t.Errorf("timerd ended with exit code %d", code)
	}
	s.timerd = nil
}

// set sets a timer that is due after a time.
func (s *system) set(key, payload string, after time.Duration) {
	s.t.Helper()
	if _, err := s.timers.Set(s.t.Context(), key, []byte(payload), client.After(after)); err != nil {
		s.t.Fatal(err)
	}
}

// setMany sets n timers, at least a millisecond apart, and returns their keys in the order of their dues.
func (s *system) setMany(namespace string, n int, after time.Duration) []string {
	s.t.Helper()
	all := make([]string, n)
	settings := make([]client.Setting, n)
	for i := range n {
		all[i] = fmt.Sprintf("%s:%05d", namespace, i)
		settings[i] = client.Setting{
			Key: all[i], Payload: fmt.Appendf(nil, `{"number":%d}`, i),
			When: client.After(after + time.Duration(i)*time.Millisecond),
		}
	}
	if _, err := s.timers.SetMany(s.t.Context(), settings); err != nil {
		s.t.Fatal(err)
	}
	return all
}

// get returns a timer, and whether there is one.
func (s *system) get(key string) (client.Timer, bool) {
	s.t.Helper()
	timer, found, err := s.timers.Get(s.t.Context(), key)
	if err != nil {
		s.t.Fatal(err)
	}
	return timer, found
}

// until polls until cond returns nil.
func (s *system) until(cond func() error, what string) {
	s.t.Helper()
	testenv.Eventually(s.t, patience, cond, what)
}

// gone waits until a key has no timer.
func (s *system) gone(key string) {
	s.t.Helper()
	testenv.Eventually(s.t, patience, func() bool { _, found := s.get(key); return !found }, "the end of "+key)
}

// pending returns how many timers there are.
func (s *system) pending() int64 {
	s.t.Helper()
	n, err := s.rdb.ZCard(s.t.Context(), keys.Single.Due()).Result()
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// collect waits until n timers of a namespace have fired, and returns their events.
func (s *system) collect(namespace string, n int) []testenv.Message {
	s.t.Helper()
	subject := keys.DefaultPrefix + ".fired." + strings.ReplaceAll(namespace, ":", ".")
	return testenv.Collect(s.t, s.js, keys.DefaultStream, subject).Wait(n, patience)
}

// bury publishes a dead letter, as a consumer does that gives up.
func (s *system) bury(key, payload, lastError string) {
	s.t.Helper()
	k, err := keys.Parse(key)
	if err != nil {
		s.t.Fatal(err)
	}
	due := time.Now().Add(-time.Minute)
	e := event.Event{
		Type: event.TypeDead, ID: keys.EventID(key, due.UnixMilli(), 13), Key: k, Due: due, Attempt: 13,
		MaxAttempts: 13,
		Data:        []byte(payload), DeadReason: "attempts used up", LastError: lastError,
	}
	if _, err := s.js.Publish(s.t.Context(), k.Subject(keys.DefaultPrefix, keys.Dead), e.AppendJSON(nil)); err != nil {
		s.t.Fatal(err)
	}
}

// dead returns how many dead letters there are.
func (s *system) dead() uint64 {
	s.t.Helper()
	stream, err := s.js.Stream(s.t.Context(), keys.DefaultStream+"_DEAD")
	if err != nil {
		s.t.Fatal(err)
	}
	return stream.CachedInfo().State.Msgs
}
