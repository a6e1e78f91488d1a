package schedule_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const denied = "app2:trans:notice:1"

// newNarrowIndex returns an index whose timerd may read and write the keys of app1 alone. Its commands are those of a
// user who may do everything.
func newNarrowIndex(t *testing.T) *index {
	t.Helper()
	server := testenv.Redis(t,
		devserver.ACL("user default on nopass ~* &* +@all\nuser timerd on nopass ~app1:* ~timerd:* &* +@all\n"))
	timerd := server.Client(func(o *redis.Options) { o.Username, o.Password = "timerd", "-" })
	return newIndexFor(t, timerd, server.Client(), 1000)
}

// grant gives timerd the right to every key, and makes the timers set aside due for a look.
func (x *index) grant() {
	x.t.Helper()
	x.do("ACL", "SETUSER", "timerd", "~*")
	for _, member := range x.rdb.ZRange(x.t.Context(), keys.Single.Due(), 0, -1).Val() {
		if member[0] == ':' {
			x.do("ZADD", keys.Single.Due(), "XX", 1, member)
		}
	}
}

// setAside claims once, which sets n timers aside, and returns the claimed ones.
func (x *index) setAside(n int) []schedule.Firing {
	x.t.Helper()
	c := x.claimFor(lease)
	if c.Parked != n || n > 0 && keys.Abbreviate(c.ParkedKey)[:5] != "app2:" {
		x.t.Fatalf("set aside %d, %q; want %d", c.Parked, c.ParkedKey, n)
	}
	return c.Firings
}

// A timer whose key timerd may not read waits alone, and fires once when timerd may.
func TestDeniedTimersStopNobody(t *testing.T) {
	t.Parallel()
	x := newNarrowIndex(t)
	const n = 50
	for i := range n {
		x.do("FCALL", "timer_set", 1, fmt.Sprintf("app1:b:c:%d", i), "p", "PX", 20)
		x.do("FCALL", "timer_set", 1, fmt.Sprintf("app2:b:c:%d", i), "p", "PX", 20)
	}
	x.awaitExpiry(fmt.Sprintf("app2:b:c:%d", n-1))
	if got := x.setAside(n); len(got) != n {
		t.Fatalf("claimed %d, want %d", len(got), n)
	}
	x.claims()
	x.grant()
	fired := map[string]bool{}
	for _, f := range x.setAside(0) {
		fired[f.Key.String()] = true
		if f.Status != schedule.PayloadPresent || string(f.Payload) != "p" || int64(f.Due) != x.due(f.Key.String()) {
			t.Errorf("%+v", f)
		}
	}
	if len(fired) != n {
		t.Errorf("%d fired when timerd might read the keys, want %d", len(fired), n)
	}
	x.claims()
}

// The pauses between looks at a timer that is set aside grow with the time that it has been due.
func TestDeniedTimersAreLookedAtLessAndLess(t *testing.T) {
	t.Parallel()
	x := newNarrowIndex(t)
	x.do("FCALL", "timer_set", 1, denied, "p", "PX", 20)
	x.awaitExpiry(denied)
	x.setAside(1)
	x.damaged = true
	member := x.rdb.ZRange(t.Context(), keys.Single.Due(), 0, 0).Val()[0]
	for _, late := range []time.Duration{time.Second, 8 * time.Second, time.Hour} {
		older := fmt.Sprintf(":s%d.:%s", x.redisNow()-late.Milliseconds(), denied)
		x.do("ZREM", keys.Single.Due(), member)
		x.do("ZADD", keys.Single.Due(), 1, older)
		x.do("HSET", keys.Single.Data(), older, ":p")
		x.setAside(0)
		pause := time.Duration(x.rdb.ZScore(t.Context(), keys.Single.Due(),
			older).Val()-float64(x.redisNow())) * time.Millisecond
		want := min(max(late/4, time.Second), time.Minute)
		if pause > want+time.Second || pause < want-time.Second {
			t.Errorf("%v late: looked at again after %v, want about %v", late, pause, want)
		}
		member = older
	}
}

// An old event fires them too, unless it may be about an earlier timer of the key.
func TestDeniedTimersFireByAnOldEvent(t *testing.T) {
	t.Parallel()
	x := newNarrowIndex(t)
	heard := time.Now()
	x.do("FCALL", "timer_set", 1, denied, "p", "PX", 20)
	x.awaitExpiry(denied)
	x.setAside(1)
	x.awaitClock(x.redisNow() + 4100)
	observe := func(heard time.Time, owed int) {
		t.Helper()
		if seen, err := x.Observe(t.Context(), []schedule.Hint{expired(denied)}, heard); err != nil ||
			seen.Owed != owed {
			t.Errorf("%+v, %v; want %d owed", seen, err, owed)
		}
	}
	observe(time.Time{}, 0)
	for _, tombstone := range []string{denied, ":c:" + denied} {
		x.do("ZADD", keys.Single.Fired(), x.redisNow()-5000, tombstone)
		observe(heard, 0)
		x.do("ZREM", keys.Single.Fired(), tombstone)
	}
	observe(heard, 1)
	x.fires(denied + " expired p")
}

// The event says that a key ran out, whether timerd may read the key or not.
func TestDeniedTimersFireByTheirEvent(t *testing.T) {
	t.Parallel()
	for name, claimed := range map[string]bool{"before the claim": false, "after the claim": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newNarrowIndex(t)
			x.do("FCALL", "timer_set", 1, denied, "p", "PX", 20)
			x.awaitExpiry(denied)
			if claimed {
				x.setAside(1)
			}
			if seen := x.observe(expired(denied)); seen.Owed != 1 {
				t.Errorf("%+v, want one owed", seen)
			}
			x.fires(denied + " expired p")
			x.observe(expired(denied)) // again
			x.grant()
			x.claims()
		})
	}
}

// Hints of keys that timerd may not read say nothing, and stop no others.
func TestDeniedHintsStopNobody(t *testing.T) {
	t.Parallel()
	x := newNarrowIndex(t)
	var hints []schedule.Hint
	for i := range 40 {
		for _, app := range []string{"app1", "app2"} {
			key := fmt.Sprintf("%s:b:c:%d", app, i)
			x.do("SET", key, "p", "PX", 60000)
			hints = append(hints, touched(key), audited(key), gone(key), evicted(key))
		}
	}
	seen := x.observe(hints...)
	if seen.Adopted != 40 || seen.Denied == 0 || seen.DeniedKey[:5] != "app2:" {
		t.Errorf("%+v, want 40 adopted", seen)
	}
	x.audit()
}

// A retry for a key that timerd may not write is set all the same, without a trigger key.
func TestRetryOfADeniedKey(t *testing.T) {
	t.Parallel()
	x := newNarrowIndex(t)
	key, err := keys.Parse(denied)
	if err != nil {
		t.Fatal(err)
	}
	r := schedule.Retry{EventID: "event", Key: key, Due: schedule.Millis(x.redisNow() + 20), Attempt: 2,
		Payload: []byte("p")}
	for i, want := range []bool{true, false} {
		if _, ok, err := x.Retry(t.Context(), r); ok != want || err != nil {
			t.Fatalf("retry %d: %t, %v", i+1, ok, err)
		}
	}
	if x.do("EXISTS", denied) != int64(0) {
		t.Error("timerd wrote a key that it may not write")
	}
	x.awaitClock(int64(r.Due))
	if f := x.claims(denied + " deadline p"); f[0].Attempt != 2 || f[0].Due != r.Due {
		t.Errorf("%+v", f[0])
	}
}

// If a key is changed while timerd may not read it, its present state counts once timerd may.
func TestDeniedAndChangedMeanwhile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(x *index)
		fires  []string
		later  bool // whether a timer is pending then
	}{
		"extended":              {func(x *index) { x.do("PEXPIRE", denied, 60000) }, nil, true},
		"extended and taken in": {func(x *index) { x.do("PEXPIRE", denied, 60000) }, nil, true},
		"persisted":             {func(x *index) { x.do("PERSIST", denied) }, nil, false},
		"cancelled": {func(x *index) {
			if got := x.do("FCALL", "timer_cancel", 1, denied); got != "cancelled" {
				x.t.Errorf("timer_cancel: %v", got)
			}
		}, nil, false},
		"run out and cancelled": {func(x *index) {
			x.awaitExpiry(denied)
			if got := x.do("FCALL", "timer_cancel", 1, denied); got != "cancelled" {
				x.t.Errorf("timer_cancel: %v", got)
			}
			x.observe(expired(denied)) // whose event comes late
		}, nil, false},
		"set again": {func(x *index) {
			x.awaitExpiry(denied)
			x.do("FCALL", "timer_set", 1, denied, "newer", "PX", 60000)
		}, []string{denied + " deadline p"}, true},
		"set again as a plain key": {func(x *index) {
			x.awaitExpiry(denied)
			x.do("SET", denied, "newer", "PX", 60000)
		}, []string{denied + " deadline p"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newNarrowIndex(t)
			x.do("FCALL", "timer_set", 1, denied, "p", "PX", brief)
			first := x.due(denied)
			before := strings.HasPrefix(name, "extended") || name == "persisted"
			if before {
				c.change(x)
			}
			x.awaitClock(first)
			x.setAside(1)
			if !before {
				c.change(x)
			}
			x.grant()
			if name == "extended and taken in" { // by an audit, or by the event of another change
				x.observe(touched(denied))
			}
			x.claims(c.fires...)
			if pending := x.do("ZSCORE", keys.Single.Due(), denied) != nil; pending != c.later {
				t.Errorf("pending: %t", pending)
			}
			if record := x.do("HGET", keys.Single.Data(), denied); strings.HasPrefix(name, "extended") &&
				record != ":p" {
				t.Errorf("record %v, want the payload", record)
			}
		})
	}
}

// A script that is refused in the middle of its writes, for want of a right to a command, loses no timer.
func TestRefusedClaimsLoseNothing(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"zadd", "hset", "hsetnx", "hmget", "zremrangebyrank", "hdel", "zrem"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			x := newNarrowIndex(t)
			x.Claim(t.Context(), []schedule.ClaimRequest{{Partition: keys.Single, Known: schedule.Never}}, lease)
			want := 1
			if command == "zrem" { // a usual claim does without it
				x.observe(expired("app1:b:c:owed"))
				want = 2
			}
			x.do("FCALL", "timer_set", 1, "app1:b:c:1", "p", "PX", 20)
			if command == "hset" { // a single timer does without it
				x.do("FCALL", "timer_set", 1, "app1:b:c:2", "p", "PX", 20)
				x.awaitExpiry("app1:b:c:2")
				want = 2
			}
			x.awaitExpiry("app1:b:c:1")
			x.do("ACL", "SETUSER", "timerd", "-"+command)
			request := []schedule.ClaimRequest{{Partition: keys.Single}}
			if c := x.Claim(t.Context(), request, time.Millisecond)[0]; c.Err == nil {
				t.Fatal("the claim worked")
			}
			_ = x.Claim(t.Context(), request, time.Millisecond) // it is tried again and again
			x.do("ACL", "SETUSER", "timerd", "+"+command)
			x.awaitClock(x.redisNow() + 2) // the lease, if the claim came that far
			ids := map[string]bool{}
			for _, f := range x.claimFor(lease).Firings {
				ids[f.Ref] = true
				if f.Status != schedule.PayloadPresent && f.Key.ID != "owed" {
					t.Errorf("%+v", f)
				}
			}
			if len(ids) != want {
				t.Errorf("fired %v, want %d", ids, want)
			}
			// The remains of the claim make no second timer.
			_, err := x.Restore(t.Context(), keys.Single, time.Second)
			if missing, _ := x.torn(); err != nil || missing != 0 {
				t.Errorf("%d are missing still, %v", missing, err)
			}
			x.claims()
		})
	}
}

// The guards' answers in a claim that was refused in the middle of its writes do not count, and take no ref.
func TestRefusedClaimsOfGuardedTimers(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2} {
		x := newNarrowIndex(t)
		dues := map[string]int64{}
		for i := range n {
			key := fmt.Sprintf("app1:b:c:%d", i)
			x.do("FCALL", "timer_set", 1, key, "p", "PX", 20, "UNLESS", "app1:paid")
			dues[key] = x.due(key)
			x.awaitExpiry(key)
		}
		x.do("SET", "app1:paid", "")
		x.do("ACL", "SETUSER", "timerd", "-zadd")
		if c := x.Claim(t.Context(), []schedule.ClaimRequest{{Partition: keys.Single}}, lease)[0]; c.Err == nil {
			t.Fatal("the claim worked")
		}
		x.do("ACL", "SETUSER", "timerd", "+zadd")
		x.do("DEL", "app1:paid")
		for _, f := range x.claimFor(lease).Firings {
			if int64(f.Due) != dues[f.Key.String()] || f.Refusal != (policy.Refusal{}) {
				t.Errorf("claimed %s with %+v, want it due at %d", f.Ref, f.Refusal, dues[f.Key.String()])
			}
			delete(dues, f.Key.String())
			x.settle(f)
		}
		if len(dues) > 0 {
			t.Errorf("%v were not claimed", dues)
		}
		x.isEmpty()
	}
}
