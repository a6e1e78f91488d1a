package schedule_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

func TestSetFiresOnceAndSettles(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	due := x.do("FCALL", "timer_set", 1, k, "hello", "PX", brief)
	if at := x.do("PEXPIRETIME", k); at != due {
		t.Fatalf("the key runs out at %v, timer_set said %v", at, due)
	}
	x.claims()
	x.awaitExpiry(k)
	firings := x.claims(k + " deadline hello")
	if int64(firings[0].Due) != due {
		t.Errorf("due %d, want %v", firings[0].Due, due)
	}
	x.claims()
	for range 2 {
		if err := x.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
			t.Fatal(err)
		}
	}
	x.observe(expired(k))
	x.claims()
	x.isEmpty()
	if got := x.do("FCALL", "timer_cancel", 1, k); got != "fired" {
		t.Errorf("timer_cancel after firing: %v, want fired", got)
	}
}

func TestSetOptions(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	now := x.redisNow()
	for _, c := range []struct {
		args []any
		want int64
	}{
		{[]any{"PX", 60000}, now + 60000},
		{[]any{"ex", 60}, now + 60000},
		{[]any{"PXAT", now + 70000}, now + 70000},
		{[]any{"exat", now/1000 + 80}, (now/1000 + 80) * 1000},
	} {
		got, _ := x.do(append([]any{"FCALL", "timer_set", 1, k, ""}, c.args...)...).(int64)
		if got < c.want || got > c.want+5000 {
			t.Errorf("%v: due %d, want %d or a little later", c.args, got, c.want)
		}
	}
	if got := x.do("FCALL", "timer_set", 1, k, "no", "PX", 1000, "NX"); got != nil {
		t.Errorf("NX on a pending timer: %v, want nil", got)
	}
	if got := x.do("FCALL", "timer_set", 1, k, "yes", "PX", 90000, "XX", "ATTEMPT", 7); got == nil {
		t.Error("XX on a pending timer said no")
	}
	if got := x.do("FCALL", "timer_set", 1, k+"2", "no", "PX", 1000, "XX"); got != nil {
		t.Errorf("XX without a timer: %v, want nil", got)
	}
	if got := x.do("FCALL", "timer_set", 1, k+"2", "yes", "PX", 1000, "NX"); got == nil {
		t.Error("NX without a timer said no")
	}
	got := fmt.Sprint(x.do("FCALL_RO", "timer_get", 1, k))
	if want := fmt.Sprintf("[due %v attempt 7 payload yes state pending]", x.do("PEXPIRETIME", k)); got != want {
		t.Errorf("timer_get: %s, want %s", got, want)
	}
	if got := x.do("FCALL_RO", "timer_get", 1, k+"3"); got != nil {
		t.Errorf("timer_get without a timer: %v, want nil", got)
	}
}

// An instant that has passed is due at once, and no two firings share an id, however fast they are set.
func TestSetForThePast(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	var fired []schedule.Firing
	for i := range 20 {
		before := x.redisNow()
		due, _ := x.do("FCALL", "timer_set", 1, k, i, []string{"PXAT", "EXAT", "PXAT"}[i%3],
			[]any{12345, 0, before}[i%3]).(int64)
		if after := x.redisNow(); due < before || due > after+1 {
			t.Fatalf("due at %d, want the present: %d to %d", due, before, after)
		}
		firings, _ := x.claimOnce()
		if err := x.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
			t.Fatal(err)
		}
		fired = append(fired, firings...)
	}
	x.awaitClock(x.redisNow() + 1)
	firings, _ := x.claimOnce()
	if err := x.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
		t.Fatal(err)
	}
	x.fireAll(0, append(fired, firings...)...)
	x.do("FCALL", "timer_set", 1, k, "held by nobody", "PXAT", 1)
	if got := x.do("FCALL", "timer_cancel", 1, k); got != "cancelled" {
		t.Errorf("timer_cancel of one that is owed: %v", got)
	}
	x.claims()
	x.isEmpty()
}

func TestBadCallsChangeNothing(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	long := strings.Repeat("a", 129)
	for _, c := range []struct {
		text string
		args []any
	}{
		{"not a timer key", []any{1, "a:b:c", "p", "PX", 1000}},
		{"not a timer key", []any{1, "a::c:d", "p", "PX", 1000}},
		{"1028 bytes", []any{1, "a:b:c:" + strings.Repeat("d", 1022), "p", "PX", 1000}},
		{"at most 128 bytes", []any{1, "a:" + long + ":c:d", "p", "PX", 1000}},
		{"one key", []any{2, k, k, "p", "PX", 1000}},
		{"wants: payload", []any{1, k, "p"}},
		{"payload has 1001 bytes", []any{1, k, strings.Repeat("p", 1001), "PX", 1000}},
		{"no time given", []any{1, k, "p", "ATTEMPT", 1}},
		{"must be greater than 0", []any{1, k, "p", "PX", 0}},
		{"must be greater than 0", []any{1, k, "p", "PX", -5}},
		{"over 10 years", []any{1, k, "p", "PXAT", int64(253402300800000)}},
		{"over 10 years", []any{1, k, "p", "EX", 315360001}},
		{"PX wants an integer", []any{1, k, "p", "PX", "1e3"}},
		{"PX wants an integer", []any{1, k, "p", "PX", "0x10"}},
		{"EX wants an integer", []any{1, k, "p", "EX", "1.5"}},
		{"PX wants an integer", []any{1, k, "p", "PX", "999999999999999999999"}},
		{"the delay is over 10 years", []any{1, k, "p", "PX", "99999999999999999999"}},
		{"the delay is over 10 years", []any{1, k, "p", "PXAT", "9223372036854775807"}},
		{"the delay is over 10 years", []any{1, k, "p", "EX", "9223372036854775807"}},
		{"PX wants an integer", []any{1, k, "p", "NX", "PX"}},
		{"given once", []any{1, k, "p", "PX", 1000, "EX", 1}},
		{"given once", []any{1, k, "p", "PX", 1000, "NX", "XX"}},
		{"unknown option", []any{1, k, "p", "PX", 1000, "KEEPTTL"}},
		{"ATTEMPT wants", []any{1, k, "p", "PX", 1000, "ATTEMPT", 0}},
		{"ATTEMPT wants", []any{1, k, "p", "PX", 1000, "ATTEMPT"}},
		{"LATE wants milliseconds", []any{1, k, "p", "PX", 1000, "LATE"}},
		{"LATE wants milliseconds", []any{1, k, "p", "PX", 1000, "LATE", "DROP"}},
		{"LATE wants milliseconds", []any{1, k, "p", "PX", 1000, "LATE", -1}},
		{"LATE wants milliseconds", []any{1, k, "p", "PX", 1000, "LATE", "1.5"}},
		{"from 0 (no limit) to 315360000000", []any{1, k, "p", "PX", 1000, "LATE", int64(315360000001)}},
		{"LATE can be given once", []any{1, k, "p", "PX", 1000, "LATE", 1, "LATE", 1}},
		{"DROP comes after LATE ms", []any{1, k, "p", "PX", 1000, "DROP"}},
		{"DROP comes after LATE ms", []any{1, k, "p", "PX", 1000, "LATE", 1, "DROP", "DROP"}},
	} {
		x.refuses(c.text, append([]any{"FCALL", "timer_set"}, c.args...)...)
	}
	x.refuses("not a timer key", "FCALL", "timer_cancel", 1, "a:b:c")
	x.refuses("takes no arguments", "FCALL", "timer_cancel", 1, k, "now")
	x.refuses("not a timer key", "FCALL_RO", "timer_get", 1, "a:b:c")
	if left := x.do("KEYS", "*"); fmt.Sprint(left) != "["+keys.Single.Database()+"]" {
		t.Errorf("bad calls left keys: %v", left)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	cancel := func(want string) {
		t.Helper()
		if got := x.do("FCALL", "timer_cancel", 1, k); got != want {
			t.Fatalf("timer_cancel: %v, want %s", got, want)
		}
	}
	cancel("unknown")
	x.do("FCALL", "timer_set", 1, k, "p", "PX", 60000)
	cancel("cancelled")
	cancel("unknown")
	if n := x.do("EXISTS", k); n != int64(0) {
		t.Error("the trigger key outlived its timer")
	}

	x.do("SET", k, "not adopted yet", "PX", 60000)
	cancel("cancelled")

	x.do("SET", k, "an ordinary key")
	cancel("unknown")
	if n := x.do("DEL", k); n != int64(1) {
		t.Error("timer_cancel deleted a key that is no trigger key")
	}

	// Due but not yet claimed: it can be cancelled, and the expired event of the deleted key does not revive it.
	x.do("FCALL", "timer_set", 1, k, "p", "PX", 20)
	x.awaitExpiry(k)
	cancel("cancelled")
	cancel("unknown")
	x.observe(expired(k))
	x.claims()
	x.isEmpty()

	// Claimed: too late.
	x.do("FCALL", "timer_set", 1, k, "p", "PX", 20)
	x.awaitExpiry(k)
	x.claims(k + " deadline p")
	cancel("fired")
}

func TestLibraryAndScriptsComeBack(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	if state, limit, err := x.Library(t.Context()); err != nil || state != schedule.LibraryCurrent ||
		limit != x.MaxPayload() {
		t.Fatalf("library: %s, limit %d, %v", state, limit, err)
	}
	x.do("FCALL", "timer_set", 1, k, "p", "PX", 20)
	x.do("FUNCTION", "FLUSH")
	x.do("SCRIPT", "FLUSH")
	x.awaitExpiry(k)
	x.claims(k + " deadline p")
	for _, want := range []bool{true, false} {
		if loaded, limit, err := x.EnsureLibrary(t.Context()); err != nil || loaded != want || limit != 0 {
			t.Fatalf("ensure: %v, limit %d, %v; want %v", loaded, limit, err, want)
		}
	}
	x.do("FCALL", "timer_set", 1, k, "p", "PX", 20)
}

// Two timerds with different limits do not overwrite the limit in turn.
func TestPayloadLimitIsThatOfTheLastToStart(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	const long = "12345678901"
	x.do("FCALL", "timer_set", 1, k, long, "PX", 20)
	other := schedule.New(x.rdb, 10)
	for _, want := range []int{x.MaxPayload(), 0} {
		if replaced, err := other.Load(t.Context()); err != nil || replaced != want {
			t.Fatalf("load: replaced %d, %v; want %d", replaced, err, want)
		}
	}
	if state, limit, err := x.Library(t.Context()); err != nil || state != schedule.LibraryDifferent || limit != 10 {
		t.Fatalf("library: %s, limit %d, %v", state, limit, err)
	}
	for _, want := range []int{10, 0} {
		if loaded, limit, err := x.EnsureLibrary(t.Context()); err != nil || loaded || limit != want {
			t.Fatalf("ensure: %v, limit %d, %v; want it left alone and limit %d", loaded, limit, err, want)
		}
	}
	x.do("FUNCTION", "FLUSH")
	if loaded, limit, err := x.EnsureLibrary(t.Context()); err != nil || !loaded || limit != 0 || x.MaxPayload() != 10 {
		t.Fatalf("ensure: %v, limit %d, %v, in force %d; want it loaded with 10", loaded, limit, err, x.MaxPayload())
	}
	x.refuses("at most 10", "FCALL", "timer_set", 1, "a:b:c:other", long, "PX", 20)

	// The schedule keeps its timers.
	x.awaitExpiry(k)
	x.claims(k + " deadline " + long)
}
