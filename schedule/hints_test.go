package schedule_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// fireBefore lets a timer of k fire and settles it.
func (x *index) fireBefore() {
	x.t.Helper()
	x.do("FCALL", "timer_set", 1, k, "before", "PX", 10)
	x.awaitExpiry(k)
	x.fires(k + " deadline before")
}

// An expired event that comes some time after a firing of its key is not the event of that firing.
func TestExpiredEventsSomeTimeAfterAFiring(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		run  func(x *index)
		want string
	}{
		"shortened": {func(x *index) {
			x.do("FCALL", "timer_set", 1, k, "shortened", "EX", 3600)
			x.do("PEXPIRE", k, 3)
		}, "expired shortened"},
		"too short to be adopted": {func(x *index) { x.do("SET", k, "v", "PX", 3) }, "expired status 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			x.fireBefore()
			x.awaitClock(x.redisNow() + 4100)
			c.run(x)
			x.awaitExpiry(k)
			x.observe(touched(k), expired(k))
			x.fires(k + " " + c.want)
			x.isEmpty()
		})
	}
}

func TestCancelAfterAFiring(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.fireBefore()
	x.do("FCALL", "timer_set", 1, k, "p", "PX", 60000)
	for _, want := range []string{"cancelled", "unknown"} {
		if got := x.do("FCALL", "timer_cancel", 1, k); got != want {
			t.Errorf("timer_cancel: %v, want %s", got, want)
		}
	}
}

// Hints for known timers leave no trace of unknown keys.
func TestHintsForKnownTimers(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("SET", "other:b:c:plain", "p", "PX", 60000)
	x.do("FCALL", "timer_set", 1, "other:b:c:set", "p", "PX", 60000)
	x.do("PEXPIRE", "other:b:c:set", brief)
	x.observe(known(touched("other:b:c:plain")), known(expired("other:b:c:gone")), known(touched("other:b:c:set")))
	x.awaitExpiry("other:b:c:set")
	x.claims("other:b:c:set deadline p")
	if n := x.do("ZCARD", keys.Single.Due()); n != int64(0) {
		t.Errorf("%v timers pending, want none", n)
	}
	if got := x.do("ZRANGE", keys.Single.Known(), 0, -1); fmt.Sprint(got) != "[other]" {
		t.Errorf("apps: %v", got)
	}
}

// However large the payloads, one call is short; but all hints are taken in.
func TestObserveIsBounded(t *testing.T) {
	t.Parallel()
	rdb := servers.client(t)
	s := schedule.New(rdb, schedule.DefaultMaxPayload)
	ctx := t.Context()
	var hints []schedule.Hint
	for i := range 20 {
		key := fmt.Sprintf("a:b:c:%d", i)
		rdb.Set(ctx, key, strings.Repeat("x", schedule.DefaultMaxPayload), time.Hour)
		hints = append(hints, schedule.Hint{Kind: schedule.Touched, Key: key})
	}
	seen, err := onlyNode(t, s).Observe(ctx, hints, time.Time{})
	if err != nil || seen.Adopted != 20 {
		t.Errorf("%+v, %v; want 20 adopted", seen, err)
	}
	for _, h := range hints {
		if n := rdb.HStrLen(ctx, keys.Single.Data(), h.Key).Val(); n != schedule.DefaultMaxPayload+1 {
			t.Errorf("%s has a record of %d bytes", h.Key, n)
		}
	}
}

// An old expired event says nothing about a timer that was set since, nor about one that is not known.
func TestOldExpiredEvents(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.fireBefore()
	x.awaitClock(x.redisNow() + 4100)
	x.do("FCALL", "timer_set", 1, k, "newer", "PX", 60000)
	x.old = true
	x.observe(expired(k), known(expired(k)), expired(k+"-unknown"))
	x.claims()
	if due := x.do("ZSCORE", keys.Single.Due(), k); due == nil {
		t.Error("the newer timer is gone")
	}
}
