package schedule_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
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

// A trigger key that Redis has not removed yet when its timer is claimed must not
// be reported as expired ages later, when nobody remembers the firing.
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
	}
	if inTheSameMillisecond == 0 {
		t.Error("no timer was claimed in the millisecond of its due time: this shows nothing")
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

// Bad entries of the index do not delay good ones.
func TestCorruptEntries(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.seeded = true
	for i := range 5 {
		x.do("FCALL", "timer_set", 1, fmt.Sprintf("a:b:c:%d", i), "p", "PX", 20)
	}
	x.awaitExpiry("a:b:c:4")
	x.do("ZADD", keys.Single.Due(), 1, "garbage", 2, "::", 3, ":garbage")
	x.do("ZADD", keys.Single.Firing(), 0, "garbage", 0, "-5:1:a:b:c:d")
	c := x.claimFor(lease)
	good := 0
	for _, f := range c.Firings {
		if f.Key.App == "a" && f.Key.ID != "d" {
			good++
		}
	}
	if good != 5 || len(c.Corrupt) == 0 {
		t.Errorf("%d good firings, corrupt: %v; want 5 and some", good, c.Corrupt)
	}
	if err := x.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, c.Firings...)); err != nil {
		t.Fatal(err)
	}
	x.isEmpty()
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

// A mark under another name is not that timer's own.
func TestMarksAreNotExchangeable(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("FCALL", "timer_set", 1, k+"a", "A", "PX", 60000)
	x.do("FCALL", "timer_set", 1, k+"b", "B", "PX", 60000)
	x.do("RENAME", k+"a", k+"b")
	x.observe(gone(k+"a"), touched(k+"b"))
	if got := fmt.Sprint(x.do("FCALL_RO", "timer_get", 1, k+"b")); !strings.HasSuffix(got,
		"payload <nil> state pending]") {
		t.Errorf("timer_get after RENAME: %s, want no payload rather than B", got)
	}
}

// payloadIs fails unless timer_get returns this payload, once an event of the key has been taken in. "<nil>" means
// none.
func (x *index) payloadIs(key, want string) {
	x.t.Helper()
	x.observe(touched(key))
	got := fmt.Sprint(x.do("FCALL_RO", "timer_get", 1, key))
	if _, got, _ := strings.Cut(strings.TrimSuffix(got, " state pending]"), "payload "); got != want {
		x.t.Errorf("timer_get %s: payload %s, want %s", key, got, want)
	}
}

// Redis keeps a mark as an integer, whatever it has been read back from. Valkey 9.1 keeps it in one piece with its key.
func TestMarksAreIntegers(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	x := newIndexFor(t, server.Client(), server.Client(), 1000)
	x.do("FCALL", "timer_set", 1, k+"2", "mine", "PX", 60000)
	x.retry("event", x.redisNow()+60000, 2, "again")
	want := []any{"int"}
	if server.IsValkey() {
		want = append(want, "embstr")
	}
	integers := func(when string) {
		t.Helper()
		for _, key := range []string{k, k + "2"} {
			if got := x.do("OBJECT", "ENCODING", key); !slices.Contains(want, got) {
				t.Errorf("%s: the mark of %s is stored as %v, want %v", when, key, got, want)
			}
		}
		x.payloadIs(k, "again")
		x.payloadIs(k+"2", "mine")
	}
	integers("as written")
	server.Restart()
	integers("read back from commands")
	x.do("BGREWRITEAOF")
	testenv.Eventually(t, time.Minute, func() bool {
		info, _ := x.do("INFO", "persistence").(string)
		return strings.Contains(info, "aof_rewrite_in_progress:0") &&
			strings.Contains(info, "aof_rewrite_scheduled:0") &&
			strings.Contains(info, "aof_rewrites:1")
	}, "the append-only file to be rewritten")
	server.Restart()
	integers("read back from an RDB")
}

// What other commands make of a mark is never taken for the payload.
func TestChangedMarks(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	for i, test := range []struct {
		command []any // without the key
		want    string
	}{
		{[]any{"PEXPIRE", 90000}, "mine"},
		{[]any{"APPEND", "more"}, "more"},
		{[]any{"APPEND", "42"}, "42"},
		{[]any{"SETRANGE", 15, "x"}, "<nil>"},
		{[]any{"SETRANGE", 0, "x"}, "<nil>"},
		{[]any{"SETRANGE", 0, "ten bytes!"}, "<nil>"},
		{[]any{"SETRANGE", 1, "abc"}, "<nil>"},
		{[]any{"SETRANGE", 8, "abcdefgh"}, "<nil>"},
		{[]any{"SETRANGE", 11, "abcdefgh and more"}, "<nil>"},
		{[]any{"SETRANGE", 20, "behind it"}, "behind it"},
		{[]any{"SETRANGE", 0, "a value of twenty bytes"}, "a value of twenty bytes"},
		{[]any{"SETBIT", 7, 0}, "<nil>"},
		{[]any{"SETBIT", 100, 1}, "<nil>"},
		{[]any{"BITFIELD", "SET", "i64", 0, 0}, "<nil>"},
		{[]any{"BITFIELD", "INCRBY", "u8", 24, 1}, "<nil>"},
		{[]any{"GETEX", "PX", 90000}, "mine"},
		{[]any{"DECRBY", 1_000_000_000_000_000_000}, "<nil>"},
		{[]any{"SET", "{\"order_id\":0020261126}", "KEEPTTL"}, "{\"order_id\":0020261126}"},
		{[]any{"INCR"}, "<nil>"},
		{[]any{"DECR"}, "<nil>"},
		{[]any{"INCRBY", 10_000_000}, "<nil>"},
		{[]any{"DECRBY", 10_000_000}, "<nil>"},
		{[]any{"INCRBYFLOAT", "0.5"}, "<nil>"},
		{[]any{"SET", "-8", "KEEPTTL"}, "-8"},
		{[]any{"SET", "-80116109100", "KEEPTTL"}, "-80116109100"},
		{[]any{"SET", "-80116109x0x12345678", "KEEPTTL"}, "-80116109x0x12345678"},
		{[]any{"SET", "-8011610910012345678", "KEEPTTL"}, "<nil>"},
	} {
		key := fmt.Sprint(k, i)
		x.do("FCALL", "timer_set", 1, key, "mine", "PX", 60000)
		x.do(slices.Insert(test.command, 1, any(key))...)
		x.payloadIs(key, test.want)
	}
}

// Hints for timers that are known leave no trace of keys that are not.
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

// A record that nobody can read harms nobody else.
func TestCorruptRecord(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("SET", k, "p", "PX", 60000)
	x.observe(touched(k))
	x.do("HSET", keys.Single.Data(), k, "no colon")
	x.do("DEL", k)
	x.do("SET", k+"2", "p", "PX", 60000)
	x.observe(gone(k), evicted(k), expired(k), touched(k+"2"))
	if due := x.do("ZSCORE", keys.Single.Due(), k+"2"); due == nil {
		t.Error("the timer beside the corrupt record was not adopted")
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
