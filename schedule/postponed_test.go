package schedule_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// again sets a timer of k again, and returns its due time, or -1 if it was set before.
func (x *index) again(id string, due int64, attempt int, origin schedule.Origin, payload string) int64 {
	x.t.Helper()
	key, err := keys.Parse(k)
	if err != nil {
		x.t.Fatal(err)
	}
	r := schedule.Retry{EventID: id, Key: key, Due: schedule.Millis(due), Attempt: attempt, Origin: origin,
		Payload: []byte(payload)}
	got, ok, err := x.Retry(x.t.Context(), r)
	if err != nil {
		x.t.Fatal(err)
	}
	if !ok {
		return -1
	}
	return int64(got)
}

// first is an Origin like any other.
var first = schedule.Origin{Due: 1763629200000, Attempt: 1}

func TestOriginStaysWithItsTimer(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	due := x.redisNow() + 60000
	x.again("id", due, 2, first, "p")
	if got, want := x.record(k), "2;O=1763629200000.1:p"; got != want {
		t.Errorf("the record is %q, want %q", got, want)
	}
	x.do("PEXPIRE", k, 90000)
	x.observe(touched(k))
	x.do("DEL", k)
	x.observe(evicted(k), gone(k))
	if got, want := x.record(k), "2e;O=1763629200000.1:p"; got != want {
		t.Errorf("the record of the evicted timer is %q, want %q", got, want)
	}
	x.do("ZADD", keys.Single.Due(), x.redisNow(), k)
	if f := x.claims(k + " deadline p")[0]; f.Origin != first || f.Attempt != 2 {
		t.Errorf("claimed %+v, want the origin %+v", f, first)
	}

	x.again("id2", due, 2, first, "p")
	x.do("SET", k, "new", "PX", 60000)
	x.observe(touched(k))
	if got := x.record(k); got != ":new" {
		t.Errorf("the record of a new timer is %q, want %q", got, ":new")
	}
	if f := x.again("id3", 1, 3, schedule.Origin{}, "p"); f != 1 {
		t.Errorf("due at %d, want 1", f)
	}
	for _, f := range x.claims(k + " deadline p") {
		if f.Origin != (schedule.Origin{}) {
			t.Errorf("claimed %+v, want no origin", f)
		}
	}
}

// A timer that fires as attempt 1 again never gets the id of another firing of its key, in whatever state that is.
func TestPostponedNeverSharesAnID(t *testing.T) {
	t.Parallel()
	for _, given := range [][]any{nil, {"ATTEMPT", 1}} {
		for _, when := range []string{"due", "claimed", "settled"} {
			x := newIndex(t)
			x.do(append([]any{"FCALL", "timer_set", 1, k, "p", "PX", 30}, given...)...)
			due := x.due(k)
			x.awaitClock(due)
			var claimed []schedule.Firing
			if when != "due" {
				claimed, _ = x.claimOnce()
				if when == "settled" {
					if err := x.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, claimed...)); err != nil {
						t.Fatal(err)
					}
				}
			}
			const n = 20
			for i := range n {
				if got := x.again(fmt.Sprint(i), due, 1, first, "again"); got <= due {
					t.Fatalf("the other one is %s: a postponed one is due at %d, want it after %d", when, got, due)
				}
				if again := x.again(fmt.Sprint(i), due, 1, first, "again"); again != -1 {
					t.Fatalf("the same request again: due at %d", again)
				}
			}
			if err := x.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, claimed...)); err != nil {
				t.Fatal(err)
			}
			x.fireAll(n + map[string]int{"due": 1}[when])
		}
	}
}

// fireAll claims and settles n firings, and checks that none is early and that no two share an id, earlier ones
// included.
func (x *index) fireAll(n int, before ...schedule.Firing) {
	x.t.Helper()
	ids := map[string]bool{}
	take := func(f *schedule.Firing) {
		id := keys.EventID(f.Key.String(), int64(f.Due), max(f.Attempt, 1))
		if ids[id] {
			x.t.Fatalf("two firings have the id %s", id)
		}
		ids[id] = true
	}
	for i := range before {
		take(&before[i])
	}
	for len(ids) < n+len(before) {
		x.awaitClock(x.redisNow() + 1)
		firings, _ := x.claimOnce()
		for i := range firings {
			take(&firings[i])
		}
		if err := x.Settle(x.t.Context(), schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
			x.t.Fatal(err)
		}
	}
	x.isEmpty()
}

// A newer timer of the key may become due in the very ms for which the postponed one waits beside it, and be claimed
// before.
func TestPostponedBesideATimerOfItsDueTime(t *testing.T) {
	t.Parallel()
	for _, later := range []bool{false, true} {
		x := newIndex(t)
		x.do("FCALL", "timer_set", 1, k, "newer", "PX", 60000)
		due := x.redisNow() + brief
		const n = 3
		for i := range n {
			x.again(fmt.Sprint(i), due, 1, first, "postponed")
		}
		x.do("PEXPIREAT", k, due)
		x.observe(touched(k))
		if !later {
			x.awaitClock(due)
			x.fireAll(n + 1)
			continue
		}
		// The newer one is claimed and settled first.
		x.postponedAreDue(due + 60_000)
		x.awaitClock(due)
		firings := x.claims(k + " deadline newer")
		if err := x.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
			t.Fatal(err)
		}
		x.postponedAreDue(due)
		x.fireAll(n, firings...)
	}
}

// postponedAreDue sets the time at which claims look at the timers that wait beside others.
func (x *index) postponedAreDue(at int64) {
	x.t.Helper()
	for _, member := range x.rdb.ZRange(x.t.Context(), keys.Single.Due(), 0, -1).Val() {
		if strings.HasPrefix(member, ":") {
			x.do("ZADD", keys.Single.Due(), at, member)
		}
	}
}

// Few steps claim the maximum number of timers beside one key.
func TestManyPostponedOfOneKey(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("FCALL", "timer_set", 1, k, "newer", "PX", brief)
	due := x.due(k)
	const most = 150
	for i := range most {
		x.again(fmt.Sprint(i), due-int64(i%3), 1, first, "postponed")
	}
	x.awaitClock(due + most)
	x.fireAll(most + 1)
}

// A resume that shifts, and an event of a later setting, avoid the ids of postponed timers too.
func TestShiftAvoidsThePostponed(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	due := x.redisNow() + 50
	x.again("id", due, 1, first, "postponed")
	x.awaitClock(due)
	x.claims(k + " deadline postponed")
	if n := x.do("ZSCORE", keys.Single.Fired(), fmt.Sprintf(":i:%d:%s", due, k)); n == nil {
		t.Error("a postponed firing leaves no tombstone of its id")
	}
	x.do("FCALL", "timer_set", 1, k, "p", "PX", 50, "ATTEMPT", 1)
	due = x.due(k)
	x.awaitClock(due)
	x.claims(k + " deadline p")
	if n := x.do("ZSCORE", keys.Single.Fired(), fmt.Sprintf(":i:%d:%s", due, k)); n != nil {
		t.Error("a first firing leaves a tombstone of its id")
	}
}
