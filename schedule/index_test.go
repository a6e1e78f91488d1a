package schedule_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const lease = 10 * time.Second

const k = "app1:trans:notice:1"

// index is a schedule on a Redis of its own. No listener runs: tests hand in
// the hints that they want it to have seen.
type index struct {
	*schedule.Schedule
	t     testing.TB
	rdb   *redis.Client
	since int64 // from when on every event was heard; 0: always
	old   bool  // whether hints are of long ago
}

func newIndex(t testing.TB, opts ...testenv.RedisOption) *index {
	t.Helper()
	rdb := testenv.Redis(t, opts...).Client()
	s := schedule.New(rdb, 1000)
	if err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &index{Schedule: s, t: t, rdb: rdb}
}

// do runs a Redis command and returns its reply, with nil for a null.
func (x *index) do(args ...any) any {
	x.t.Helper()
	reply, err := x.rdb.Do(x.t.Context(), args...).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		x.t.Fatalf("%v: %v", args, err)
	}
	return reply
}

// fails runs a Redis command that must be refused with a text.
func (x *index) fails(text string, args ...any) {
	x.t.Helper()
	reply, err := x.rdb.Do(x.t.Context(), args...).Result()
	if err == nil || !strings.Contains(err.Error(), text) {
		x.t.Fatalf("%q: got %v, %v; want an error with %q", args, reply, err, text)
	}
}

// hint takes in hints given as "kind key", the kind in upper case where only
// known timers are concerned.
func (x *index) hint(hints ...string) schedule.Observed {
	x.t.Helper()
	var in []schedule.Hint
	for _, h := range hints {
		kind := strings.ToLower(h[:1])
		in = append(in, schedule.Hint{Kind: schedule.HintKind(kind[0]), Key: h[2:], Known: kind != h[:1]})
	}
	seen, err := x.Observe(x.t.Context(), in, x.since, x.heard())
	if err != nil {
		x.t.Fatal(err)
	}
	return seen
}

// heard returns when the hints happened.
func (x *index) heard() int64 {
	if x.old {
		return 0
	}
	return x.redisNow()
}

// claim claims once and describes each firing as "key trigger payload".
func (x *index) claim() ([]schedule.Firing, []string) {
	x.t.Helper()
	c, err := x.Claim(x.t.Context(), keys.Single, lease, 0, x.since)
	if err != nil {
		x.t.Fatal(err)
	}
	var said []string
	for _, f := range c.Firings {
		payload := string(f.Payload)
		if f.Status != schedule.PayloadPresent {
			payload = fmt.Sprintf("status %d", f.Status)
		}
		said = append(said, fmt.Sprintf("%s %s %s", f.Key, f.Trigger, payload))
		if c.At.UnixMilli() < f.Due {
			x.t.Errorf("%s was claimed at %d, before it was due at %d", f.Key, c.At.UnixMilli(), f.Due)
		}
	}
	return c.Firings, said
}

// wants claims and compares, in any order.
func (x *index) wants(want ...string) []schedule.Firing {
	x.t.Helper()
	firings, got := x.claim()
	slices.Sort(got)
	slices.Sort(want)
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		x.t.Fatalf("claimed\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
	return firings
}

// settles claims, compares and settles.
func (x *index) settles(want ...string) {
	x.t.Helper()
	if err := x.Settle(x.t.Context(), x.wants(want...)); err != nil {
		x.t.Fatal(err)
	}
}

// redisNow returns the server's clock in unix ms.
func (x *index) redisNow() int64 {
	x.t.Helper()
	now, err := x.rdb.Time(x.t.Context()).Result()
	if err != nil {
		x.t.Fatal(err)
	}
	return now.UnixMilli()
}

// after waits until the server's clock is past an instant in unix ms.
func (x *index) after(at int64) {
	x.t.Helper()
	testenv.Eventually(x.t, time.Minute, func() bool { return x.redisNow() > at }, "the clock to pass")
}

// expire waits until a key has run out, without touching it.
func (x *index) expire(key string) {
	x.t.Helper()
	at, ok := x.do("PEXPIRETIME", key).(int64)
	if !ok || at < 0 {
		x.t.Fatalf("%s has no TTL", key)
	}
	x.after(at)
}

// empty checks that the index holds nothing but tombstones.
func (x *index) empty() {
	x.t.Helper()
	for _, name := range []string{keys.Single.Due(), keys.Single.Data(), keys.Single.Firing(), keys.Single.FiringData()} {
		if n := x.do("EXISTS", name); n != int64(0) {
			x.t.Errorf("%s is not empty: %v", name, x.do("TYPE", name))
		}
	}
}
