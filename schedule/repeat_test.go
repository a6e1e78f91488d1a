package schedule_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/cron"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// repeats sets a timer that repeats and returns its first due time.
func (x *index) repeats(args ...any) int64 {
	x.t.Helper()
	due, ok := x.do(append([]any{"FCALL", "timer_repeat", 1, k}, args...)...).(int64)
	if !ok {
		x.t.Fatalf("timer_repeat %v set nothing", args)
	}
	x.dues[k] = due
	return due
}

// occurs claims one occurrence, compares it with "repetition number payload", and returns it.
func (x *index) occurs(want string) schedule.Firing {
	x.t.Helper()
	firings, _ := x.claimOnce()
	if len(firings) != 1 || firings[0].Occurrence == nil {
		x.t.Fatalf("claimed %+v, want one occurrence", firings)
	}
	f := firings[0]
	if got := fmt.Sprintf("%s %d %s", f.Occurrence.Repeat, f.Occurrence.Number, f.Payload); got != want {
		x.t.Fatalf("claimed %q, want %q", got, want)
	}
	return f
}

// settle settles a firing that NATS has.
func (x *index) settle(f schedule.Firing) {
	x.t.Helper()
	x.settleAs(f, schedule.OutcomeFired)
}

// settleAs settles a firing with an outcome.
func (x *index) settleAs(f schedule.Firing, kind schedule.OutcomeKind) {
	x.t.Helper()
	if err := x.Settle(x.t.Context(), schedule.Outcomes(kind, f)); err != nil {
		x.t.Fatal(err)
	}
}

// pendingAt returns the due time of k's timer by the index and by its trigger key, in unix ms; 0 without one.
func (x *index) pendingAt() (index, key int64) {
	x.t.Helper()
	score, _ := x.rdb.ZScore(x.t.Context(), keys.Single.Due(), k).Result() // 0 with an error
	at, err := x.rdb.PExpireTime(x.t.Context(), k).Result()
	if err != nil {
		x.t.Fatal(err)
	}
	return int64(score), max(at.Milliseconds(), 0)
}

// isOver checks that nothing repeats any more, and nothing waits.
func (x *index) isOver() {
	x.t.Helper()
	x.isEmpty()
	if n := x.do("EXISTS", keys.Single.Repeat(), k); n != int64(0) {
		x.t.Errorf("the repetition goes on, or its key is left")
	}
}

func TestIntervalKeepsItsGrid(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	from := x.redisNow() - 1_000_000_070
	first := x.repeats("p", "EVERY", 2000, "FROM", from, "TIMES", 3, "LATE", 60000)
	last := int64(0)
	for n := 1; n <= 3; n++ {
		index, key := x.pendingAt()
		if index != key || index <= last || (index-from)%2000 != 0 || n == 1 && index != first {
			t.Fatalf(
				"occurrence %d is due at %d by the index and %d by its key, after %d on the grid from %d; "+
					"the first was %d", n, index, key, last, from, first)
		}
		want := fmt.Sprintf("repeat every 2s occurrence %d]", n)
		if got := fmt.Sprint(x.do("FCALL_RO", "timer_get", 1, k)); !strings.HasSuffix(got, want) {
			t.Errorf("timer_get: %s, want %s", got, want)
		}
		last = index
		x.awaitClock(index)
		f := x.occurs(fmt.Sprintf("every 2s %d p", n))
		if int64(f.Due) != index || f.Late != most(time.Minute) {
			t.Errorf("occurrence %d: due %d with %v, want %d", n, f.Due, f.Late, index)
		}
		x.claims()
		for range 2 { // as after a lost reply
			x.settle(f)
		}
	}
	x.isOver()
}

func TestCronIsPlannedByWhoeverClaims(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	if got := x.do("FCALL", "timer_repeat", 1, k, "p", "CRON", "30  4 1 JAN *", "TZ",
		"Asia/Kathmandu"); got != "planned" {
		t.Fatalf("timer_repeat: %v", got)
	}
	const text = "cron 30 4 1 JAN * Asia/Kathmandu"
	if got := fmt.Sprint(x.do("FCALL_RO", "timer_get", 1, k)); !strings.HasSuffix(got,
		" payload p state pending repeat "+text+" occurrence 1]") {
		t.Errorf("timer_get: %s", got)
	}
	x.claims()
	spec, err := cron.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	want, _ := (&cron.Repetition{Spec: spec}).Next(time.UnixMilli(x.redisNow()))
	if index, key := x.pendingAt(); index != want.UnixMilli() || key != index {
		t.Errorf("due at %d, key at %d; want %d", index, key, want.UnixMilli())
	}
	if got := fmt.Sprint(x.do("FCALL_RO", "timer_get", 1, k)); !strings.HasSuffix(got,
		"repeat "+text+" occurrence 1]") {
		t.Errorf("timer_get: %s", got)
	}
	if got := x.do("FCALL", "timer_cancel", 1, k); got != "cancelled" {
		t.Errorf("timer_cancel: %v", got)
	}
	x.isOver()
}

// Only the repetition that was claimed is planned.
func TestPlanOfWhatIsOverArmsNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		then   []any
		answer any
		left   bool // a timer of the key
	}{
		"cancelled": {[]any{"FCALL", "timer_cancel", 1, k}, "cancelled", false},
		"set":       {[]any{"FCALL", "timer_set", 1, k, "new", "PX", 60000}, nil, true},
	} {
		x := newIndex(t)
		x.do("FCALL", "timer_repeat", 1, k, "p", "CRON", "@hourly")
		if got := x.do(c.then...); c.answer != nil && got != c.answer {
			t.Errorf("%s: %v", name, got)
		}
		x.claims()
		if index, _ := x.pendingAt(); (index != 0) != c.left {
			t.Errorf("%s: due at %d", name, index)
		}
		if n := x.do("EXISTS", keys.Single.Repeat(), keys.Single.Firing(), keys.Single.FiringData()); n != int64(0) {
			t.Errorf("%s: the repetition is not over", name)
		}
	}
}

func TestUnknownZoneIsAFault(t *testing.T) {
	t.Parallel()
	for text, args := range map[string][]any{
		`zone "Europe/Berln" is not in the time zone database: did you mean Europe/Berlin?`: {"CRON", "@hourly", "TZ",
			"Europe/Berln"},
		"no such time in the next eight years": {"CRON", "@yearly",
			"UNTIL", newIndex(t).redisNow() + 20_000},
	} {
		x := newIndex(t)
		x.do(append([]any{"FCALL", "timer_repeat", 1, k, "p"}, args...)...)
		firings, _ := x.claimOnce()
		if len(firings) != 1 || !strings.Contains(firings[0].Fault, text) {
			t.Fatalf("claimed %+v, want the fault %q", firings, text)
		}
		x.settle(firings[0])
		x.isOver()
	}
}

// The library takes the expressions that Go takes or proposes, and refuses others in the same words.
func TestLibraryReadsExpressionsAsGoDoes(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	taken := func(expression, zone string) {
		t.Helper()
		args := []any{"FCALL", "timer_repeat", 1, k, "p", "CRON", expression}
		if zone != "" {
			args = append(args, "TZ", zone)
		}
		if got := x.do(args...); got != "planned" {
			t.Errorf("%q in %q: %v", expression, zone, got)
		}
	}
	for _, c := range testenv.CronCases(t, "../internal/cron/testdata/expressions.jsonl") {
		if c.Fault == "" || c.Planned {
			taken(c.Expression, c.Zone)
			continue
		}
		_, err := cron.At(c.Expression, c.Zone)
		if err == nil {
			t.Fatalf("%q in %q is fine", c.Expression, c.Zone)
		}
		x.refuses("ERR timerd: "+err.Error(), "FCALL", "timer_repeat", 1, k, "p", "CRON", c.Expression, "TZ", c.Zone)
		if proposed := c.Proposed(err); proposed != "" {
			taken(proposed, "")
		}
	}
	for _, expression := range []string{"0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 31 2 *"} {
		x.refuses(fmt.Sprintf("cron expression %q: no such time in the next eight years", expression), "FCALL",
			"timer_repeat", 1, k, "p", "CRON", expression)
	}
	x.do("FCALL", "timer_cancel", 1, k)
	x.isOver()
}

func TestLibraryRefusesBadRepetitions(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	now := x.redisNow()
	for _, c := range []struct {
		text string
		args []any
	}{
		{"want either EVERY ms or CRON", []any{"p", "TIMES", 5}},
		{"want either EVERY ms or CRON", []any{"p", "EVERY", 1000, "CRON", "@daily"}},
		{"EVERY wants milliseconds, an integer from 100 to 315360000000", []any{"p", "EVERY", 99}},
		{"EVERY wants milliseconds", []any{"p", "EVERY", "1s"}},
		{"EVERY can be given once", []any{"p", "EVERY", 100, "every", 100}},
		{"TZ is for CRON alone", []any{"p", "EVERY", 100, "TZ", "UTC"}},
		{"TIMES wants an integer from 1 to", []any{"p", "EVERY", 100, "TIMES", 0}},
		{"CATCHUP wants milliseconds, an integer from 0", []any{"p", "EVERY", 100, "CATCHUP", -1}},
		{"FROM wants unix-ms", []any{"p", "EVERY", 100, "FROM", "now"}},
		{"FROM is over 10 years ahead", []any{"p", "EVERY", 100, "FROM", now + 400_000_000_000}},
		{"UNTIL is before the first occurrence", []any{"p", "EVERY", 60000, "UNTIL", now + 50000}},
		{"UNTIL is before the first occurrence", []any{"p", "CRON", "@daily", "UNTIL", now - 1}},
		{"LATE wants milliseconds", []any{"p", "EVERY", 100, "LATE", "x"}},
		{"unknown option", []any{"p", "EVERY", 100, "PX", 100}},
		{"CRON wants an expression", []any{"p", "NX", "CRON"}},
		{"the payload has 1001 bytes", []any{strings.Repeat("p", 1001), "EVERY", 100}},
		{"timer_repeat wants: payload", []any{"p", "EVERY"}},
	} {
		x.refuses("ERR timerd: "+c.text, append([]any{"FCALL", "timer_repeat", 1, k}, c.args...)...)
	}
	x.refuses("not a timer key", "FCALL", "timer_repeat", 1, "a:b:c", "p", "EVERY", 100)
	x.isOver()
}

// A client's commands on the trigger key, before the occurrence is due.
func TestCommandsOnTheKeyOfARepetition(t *testing.T) {
	t.Parallel()
	far := time.Now().Add(time.Hour).UnixMilli()
	for _, c := range []struct {
		name    string
		command []any
		hint    schedule.Hint
		due     int64  // 0: the repetition is over, 1: it is as it was
		payload string // of this occurrence
	}{
		{"del", []any{"DEL", k}, gone(k), 0, ""},
		{"persist", []any{"PERSIST", k}, touched(k), 0, ""},
		{"set without ttl", []any{"SET", k, "new"}, touched(k), 0, ""},
		{"cancel", []any{"FCALL", "timer_cancel", 1, k}, gone(k), 0, ""},
		{"expire", []any{"PEXPIREAT", k, far}, touched(k), far, "p"},
		{"set", []any{"SET", k, "new", "PXAT", far}, touched(k), far, "new"},
		{"keepttl", []any{"SET", k, "new", "KEEPTTL"}, touched(k), 1, "new"},
		{"evicted", []any{"DEL", k}, evicted(k), 1, "p"},
	} {
		x := newIndex(t)
		was := x.repeats("p", "EVERY", 60000, "LATE", 5)
		x.do(c.command...)
		x.observe(c.hint)
		want := c.due
		if want == 1 {
			want = was
		}
		if index, _ := x.pendingAt(); index != want {
			t.Errorf("%s: due at %d, want %d", c.name, index, want)
		}
		if n := x.do("EXISTS", keys.Single.Repeat()); (n == int64(1)) != (want != 0) {
			t.Errorf("%s: %v repetitions", c.name, n)
		}
		if want == 0 {
			continue
		}
		x.do("DEL", k)
		x.do("ZADD", keys.Single.Due(), x.redisNow()-1, k)
		f := x.occurs("every 1m0s 1 " + c.payload)
		x.settle(f)
		if index, key := x.pendingAt(); index != was+60000 || key != index {
			t.Errorf("%s: the next occurrence is due at %d, its key at %d, want %d", c.name, index, key, was+60000)
		}
		x.do("DEL", k)
		x.do("ZADD", keys.Single.Due(), x.redisNow()-1, k)
		x.occurs("every 1m0s 2 " + c.payload)
	}
}

// Changes of the key, or of the repetition, between an occurrence's due time and its settlement.
func TestChangesBeforeTheSettlement(t *testing.T) {
	t.Parallel()
	far := time.Now().Add(time.Hour).UnixMilli()
	for _, c := range []struct {
		name    string
		command []any
		heard   bool   // before the settlement
		answer  any    // of the command
		due     int64  // due time of the pending timer after that; 0: none, 1: the undisturbed next occurrence
		repeats string // the end of timer_get's reply
	}{
		{"nothing", []any{"PING"}, false, "PONG", 1, "payload p state pending repeat every 1m0s occurrence 2]"},
		{"set", []any{"SET", k, "new", "PXAT", far}, true, "OK", far,
			"payload new state pending repeat every 1m0s occurrence 2]"},
		{"set unheard", []any{"SET", k, "new", "PXAT", far}, false, "OK", far,
			"payload new state pending repeat every 1m0s occurrence 2]"},
		{"set without ttl", []any{"SET", k, "new"}, true, "OK", 0, "state firing"},
		{"timer_set", []any{"FCALL", "timer_set", 1, k, "new", "PXAT", far}, false, far, far,
			"payload new state pending]"},
		{"timer_cancel", []any{"FCALL", "timer_cancel", 1, k}, false, "fired", 0, "state firing"},
	} {
		x := newIndex(t)
		was := x.repeats("p", "EVERY", 60000)
		x.do("DEL", k)
		x.do("ZADD", keys.Single.Due(), x.redisNow()-1, k)
		f := x.occurs("every 1m0s 1 p")
		if got := x.do(c.command...); got != c.answer {
			t.Errorf("%s: %v, want %v", c.name, got, c.answer)
		}
		if c.heard {
			x.observe(touched(k))
		}
		x.settle(f)
		want := c.due
		if want == 1 {
			want = was + 60000
		}
		if index, _ := x.pendingAt(); index != want {
			t.Errorf("%s: due at %d, want %d", c.name, index, want)
		}
		if want == 0 {
			if n := x.do("EXISTS", keys.Single.Repeat(), keys.Single.Due(), keys.Single.Firing()); n != int64(0) {
				t.Errorf("%s: the repetition goes on", c.name)
			}
			continue
		}
		if got := fmt.Sprint(x.do("FCALL_RO", "timer_get", 1, k)); !strings.HasSuffix(got, c.repeats) {
			t.Errorf("%s: timer_get: %s, want %s", c.name, got, c.repeats)
		}
		x.observe(touched(k))
		if got := fmt.Sprint(x.do("FCALL_RO", "timer_get", 1, k)); !strings.HasSuffix(got, c.repeats) {
			t.Errorf("%s: timer_get after the event: %s, want %s", c.name, got, c.repeats)
		}
	}
}

func TestRepetitionIsReplacedUnderWay(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.awaitClock(x.repeats("old", "EVERY", 100))
	f := x.occurs("every 100ms 1 old")
	due := x.repeats("new", "EVERY", 90000)
	x.settle(f)
	if index, key := x.pendingAt(); index != due || key != due {
		t.Errorf("due at %d, key at %d, want %d", index, key, due)
	}
	if got := fmt.Sprint(x.do("FCALL_RO", "timer_get", 1, k)); !strings.HasSuffix(got,
		"payload new state pending repeat every 1m30s occurrence 1]") {
		t.Errorf("timer_get: %s", got)
	}
}

// NX counts a repetition whose occurrence is firing, when there is no key.
func TestConditionsCountRepetitions(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	if got := x.do("FCALL", "timer_repeat", 1, k, "p", "EVERY", 100, "XX"); got != nil {
		t.Errorf("XX without a timer: %v", got)
	}
	x.awaitClock(x.repeats("p", "EVERY", 100, "NX"))
	x.occurs("every 100ms 1 p")
	for _, call := range [][]any{{"timer_repeat", 1, k, "p", "EVERY", 100, "NX"},
		{"timer_set", 1, k, "p", "PX", 100, "NX"}} {
		if got := x.do(append([]any{"FCALL"}, call...)...); got != nil {
			t.Errorf("%v: %v, want nil", call, got)
		}
	}
}

// skips is an Agenda that counts skipped occurrences.
type skips struct{ atomic.Int64 }

func (*skips) Armed(keys.Key, schedule.Millis) {}
func (s *skips) Skipped(n int64)               { s.Add(n) }

func TestMissedOccurrences(t *testing.T) {
	t.Parallel()
	for _, catchUp := range []int64{0, 100_000} {
		x := newIndex(t)
		var skipped skips
		x.Agenda = &skipped
		due := x.repeats("p", "EVERY", 100, "CATCHUP", catchUp)
		x.awaitClock(due + 450)
		f := x.occurs("every 100ms 1 p")
		if int64(f.Due) != due {
			t.Fatalf("due %d, want %d", f.Due, due)
		}
		x.settle(f)
		index, _ := x.pendingAt()
		missed := (index - due - 1) / 100
		switch {
		case (index-due)%100 != 0:
			t.Errorf("the next one is due at %d, off the grid from %d", index, due)
		case catchUp == 0 && (missed < 4 || skipped.Load() != missed):
			t.Errorf("the next one is due %d ms later, and %d were skipped; want at least 4, all that were missed",
				index-due, skipped.Load())
		case catchUp > 0 && (index != due+100 || skipped.Load() != 0):
			t.Errorf("the next one is due %d ms later, and %d were skipped; want none", index-due, skipped.Load())
		}
		if catchUp > 0 {
			x.settle(x.occurs("every 100ms 2 p")) // at once: it has been due
		}
	}
}

// A dead letter is no occurrence that fired.
func TestUnfiredOccurrenceIsNotCounted(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.awaitClock(x.repeats("p", "EVERY", 100, "TIMES", 1))
	f := x.occurs("every 100ms 1 p")
	x.settleAs(f, schedule.OutcomeUnfired)
	index, _ := x.pendingAt()
	x.awaitClock(index)
	x.settle(x.occurs("every 100ms 1 p"))
	x.isOver()
}

func TestRetryOfAnOccurrenceWaitsBesideTheNext(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	key, err := keys.Parse(k)
	if err != nil {
		t.Fatal(err)
	}
	was := x.repeats("p", "EVERY", 60000)
	x.do("DEL", k)
	x.do("ZADD", keys.Single.Due(), x.redisNow()-1, k)
	f := x.occurs("every 1m0s 1 p")
	r := schedule.Retry{
		EventID: "e", Key: key, Due: schedule.Millis(x.redisNow() + brief), Attempt: 2, Payload: []byte("p"),
		Repeat: f.Occurrence.Repeat, Occurrence: f.Occurrence.Number,
	}
	due, set, err := x.Retry(t.Context(), r) // before the settlement: the key is free
	if err != nil || !set {
		t.Fatal(set, err)
	}
	x.settle(f)
	if index, at := x.pendingAt(); index != was+60000 || at != index {
		t.Errorf("the next occurrence is due at %d, its key at %d, want %d", index, at, was+60000)
	}
	x.awaitClock(int64(due))
	again := x.occurs("every 1m0s 1 p")
	if again.Attempt != 2 || again.Occurrence.Repeats() {
		t.Errorf("claimed %+v, want attempt 2, with nothing to follow", again)
	}
	x.settle(again)
	if index, at := x.pendingAt(); index != was+60000 || at != index {
		t.Errorf("after the retry the next occurrence is due at %d, its key at %d", index, at)
	}
}
