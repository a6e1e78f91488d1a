package schedule_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

func TestNXAfterADeletionNobodyHeardOf(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("FCALL", "timer_set", 1, k, "deleted", "PX", 60000)
	x.do("DEL", k)
	if got := x.do("FCALL", "timer_set", 1, k, "no", "PX", 60000, "XX"); got != nil {
		t.Errorf("XX after DEL: %v, want nil", got)
	}
	if got := x.do("FCALL", "timer_set", 1, k, "new", "PX", 60000, "NX"); got == nil {
		t.Error("NX after DEL said no")
	}
	x.observe(gone(k))
	if got := fmt.Sprint(x.do("FCALL_RO", "timer_get", 1, k)); !strings.Contains(got, "payload new") {
		t.Errorf("timer_get: %s", got)
	}

	// An evicted timer is pending all the same.
	x.do("DEL", k)
	x.observe(evicted(k))
	if got := x.do("FCALL", "timer_set", 1, k, "no", "PX", 60000, "NX"); got != nil {
		t.Errorf("NX on an evicted timer: %v, want nil", got)
	}
}

// In the millisecond of its due time a claimed timer's key can still be seen.
func TestCancelInTheMillisecondOfTheClaim(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	for i := range 300 {
		key := fmt.Sprintf("a:b:c:%d", i)
		due, _ := x.do("FCALL", "timer_set", 1, key, "p", "PX", 3).(int64)
		var claimed bool
		for !claimed && x.redisNow() <= due {
			firings, _ := x.claimOnce()
			claimed = len(firings) == 1
		}
		if got := x.do("FCALL", "timer_cancel", 1, key); claimed != (got == "fired") {
			t.Fatalf("claimed: %v, but timer_cancel answered %v", claimed, got)
		}
	}
}

// A trigger key that Redis has not removed yet when its timer is claimed must not be reported as expired ages later,
// when nobody remembers the firing.
func TestClaimsLeaveNoTriggerKeyBehind(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	inTheSameMillisecond := 0
	for i := range 300 {
		key := fmt.Sprintf("a:b:c:%d", i)
		due, _ := x.do("FCALL", "timer_set", 1, key, "p", "PX", 3).(int64)
		var firings []schedule.Firing
		for len(firings) == 0 {
			firings, _ = x.claimOnce()
		}
		if firings[0].ClaimedAt.UnixMilli() == due {
			inTheSameMillisecond++
		}
		if size := x.do("EVAL", "return #redis.call('KEYS', 'a:b:c:*')", 0); size != int64(0) {
			t.Fatalf("%v trigger keys are left after the claim", size)
		}
		if err := x.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
			t.Fatal(err) // once its lease ends, it would be claimed in place of another one
		}
	}
	if inTheSameMillisecond == 0 {
		t.Error("no timer was claimed in the millisecond of its due time: this shows nothing")
	}
}

// Some servers write a round score with an exponent.
func TestRoundDueTimes(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.seeded = true
	x.do("ZADD", keys.Single.Due(), 1_700_000_000_000, "a:b:c:d")
	x.do("HSET", keys.Single.Data(), "a:b:c:d", ":p")
	if firings := x.claims("a:b:c:d deadline p"); firings[0].Due != 1_700_000_000_000 {
		t.Errorf("due %d", firings[0].Due)
	}
}

// A key that runs out after the year 9999 counts as due at its end, wherever a time is shown, and can be moved.
func TestKeysThatRunOutAfterTheYear9999(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	const latest = 253402300799999
	for i, command := range [][]any{
		{"SET", k, "p", "PXAT", int64(latest) + 1},
		{"SET", k, "p", "PXAT", int64(1) << 53},
		{"SET", k, "p", "PXAT", int64(math.MaxInt64)},
		{"PEXPIREAT", k, int64(math.MaxInt64)},
	} {
		if i == 3 {
			x.do("FCALL", "timer_set", 1, k, "p", "PX", 60000)
		}
		x.do(command...)
		x.do("SET", "app1:b:c:not taken in", "p", "PXAT", int64(math.MaxInt64))
		for _, key := range []string{k, "app1:b:c:not taken in"} {
			if got := fmt.Sprint(x.do("FCALL_RO", "timer_get", 1, key)); !strings.HasPrefix(got,
				fmt.Sprint("[due ", int64(latest), " ")) {
				t.Errorf("%v: timer_get: %s", command, got)
			}
			if got := x.inspect(key).Timers; len(got) != 1 || got[0].Due.Year() != 9999 {
				t.Errorf("%v: inspect: %+v", command, got)
			}
		}
		for range 2 {
			if seen := x.observe(touched(k)); seen.Adopted+seen.Rescheduled > 1 {
				t.Errorf("%v: %+v", command, seen)
			}
		}
		which := x.found(k, false)
		if which.Due.UnixMilli() != latest {
			t.Errorf("%v: due %v", command, which.Due)
		}
		x.moves(which, now, schedule.MoveDone)
		x.settle(x.claims(k + " deadline p")[0])
		x.isEmpty()
	}
}
