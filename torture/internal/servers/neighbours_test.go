package servers

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv/lab"
	"github.com/timerd-io/timerd/torture/internal/history"
)

// single returns a system of one Redis and nothing else.
func single(t *testing.T, clock *lab.Clock) (*System, *SingleRedis) {
	t.Helper()
	r, err := newSingle(t.Context(), clock)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return &System{Shape: Standalone, Redis: r}, r
}

func TestRedisRestartsWithAClockAhead(t *testing.T) {
	clock, err := lab.NewClock(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	_, r := single(t, clock)
	const by = time.Hour
	for name, ttl := range map[string]time.Duration{"a": by / 2, "b": by * 2} {
		if err := r.client.Set(ctx, name, "v", ttl).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.RestartAhead(ctx, by); err != nil {
		t.Fatal(err)
	}
	if got, err := r.client.Keys(ctx, "*").Result(); err != nil || fmt.Sprint(got) != "[b]" {
		t.Errorf("keys %v, %v; want only the one that the step does not reach", got, err)
	}
	if now, err := r.client.Time(ctx).Result(); err != nil || time.Until(now).Abs() > by/2 {
		t.Errorf("the clock is %v ahead in the end, %v", time.Until(now), err)
	}
}

func TestRightsTaken(t *testing.T) {
	ctx := t.Context()
	s, r := single(t, nil)
	options, err := redis.ParseURL(r.URL())
	if err != nil {
		t.Fatal(err)
	}
	timerd := redis.NewClient(options)
	defer func() {
		if err := timerd.Close(); err != nil {
			t.Error(err)
		}
	}()
	reads := func(app string, want bool) {
		t.Helper()
		err := timerd.Get(ctx, app+":a:b:c").Err()
		if refused := redis.HasErrorPrefix(err, "NOPERM"); refused == want || !refused && !errors.Is(err, redis.Nil) {
			t.Errorf("timerd reads a key of %s: %v", app, err)
		}
	}
	reads(history.NarrowApp, true)
	if err := s.TakeRights(ctx); err != nil {
		t.Fatal(err)
	}
	reads(history.NarrowApp, false)
	for _, app := range []string{history.MainApp, history.ElsewhereApp, history.FloodApp, "timerd"} {
		reads(app, true)
	}
	if err := s.GiveRights(ctx); err != nil {
		t.Fatal(err)
	}
	reads(history.NarrowApp, true)
}

// Most of the timers' keys go, keys without a TTL stay, and Redis refuses no write.
func TestEviction(t *testing.T) {
	ctx := t.Context()
	s, r := single(t, nil)
	for i := range 100 {
		if err := r.client.Set(ctx, fmt.Sprintf("a:b:c:%d", i), "v", time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.client.Set(ctx, "stays", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := s.Evict(ctx); err != nil {
		t.Fatal(err)
	}
	err := devserver.Until(ctx, 30*time.Second, func() error {
		left, err := r.client.Keys(ctx, "a:b:c:*").Result()
		if err == nil && len(left) > 50 {
			err = fmt.Errorf("%d keys of timers are left", len(left))
		}
		return errors.Join(err, r.client.Set(ctx, "written", "v", 0).Err())
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.EndEviction(ctx); err != nil {
		t.Fatal(err)
	}
	if left, err := r.client.Keys(ctx, "[bsw]*").Result(); err != nil || len(left) != 2 {
		t.Errorf("%v, %v: want the keys without TTL that are no ballast", left, err)
	}
	config, err := r.client.ConfigGet(ctx, "maxmemory*").Result()
	if err != nil || config["maxmemory"] != "0" || config["maxmemory-policy"] != "noeviction" {
		t.Errorf("%v, %v", config, err)
	}
}

// The faults of subjects and dead letters take effect for timerd's user alone, and end when healed.
func TestDeniedSubjectAndFullDeadLetters(t *testing.T) {
	ctx := t.Context()
	n, err := newNATS(ctx, filepath.Join(t.TempDir(), "nats"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}()
	refused := make(chan error, 10)
	nc, err := nats.Connect(timerdURL(n.Addr()), nats.ErrorHandler(
		func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for name, subject := range map[string]string{history.FiredStream: "timers.fired.>",
		history.DeadStream: "timers.dead.>"} {
		if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{subject}}); err != nil {
			t.Fatal(err)
		}
	}
	publish := func(class, app string) {
		t.Helper()
		if _, err := js.Publish(ctx, "timers."+class+"."+app+".a.b", nil); err != nil {
			t.Error(err)
		}
	}
	publish("fired", history.DeniedApp)
	if err := n.Deny(ctx); err != nil {
		t.Fatal(err)
	}
	if err := nc.Publish("timers.fired."+history.DeniedApp+".a.b", nil); err != nil {
		t.Fatal(err)
	}
	if err := <-refused; !errors.Is(err, nats.ErrPermissionViolation) {
		t.Error(err)
	}
	publish("fired", history.MainApp)
	if err := n.Allow(ctx); err != nil {
		t.Fatal(err)
	}
	publish("fired", history.DeniedApp)

	publish("dead", history.DyingApp)
	if err := n.FillDeadLetters(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(ctx, "timers.dead.a.b.c", nil); err == nil ||
		!strings.Contains(err.Error(), "maximum messages exceeded") {
		t.Errorf("a full stream answered %v", err)
	}
	if err := n.EmptyDeadLetters(ctx); err != nil {
		t.Fatal(err)
	}
	publish("dead", history.DyingApp)
	if nc.Reconnects != 0 {
		t.Errorf("the connection broke %d times", nc.Reconnects)
	}
}
