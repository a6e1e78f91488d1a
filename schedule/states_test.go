package schedule_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// stateOf returns what timer_get says of a key: state and payload, or nothing.
func (x *index) stateOf(key string) string {
	x.t.Helper()
	fields, _ := x.do("FCALL_RO", "timer_get", 1, key).([]any)
	said := map[any]any{}
	for i := 0; i+1 < len(fields); i += 2 {
		said[fields[i]] = fields[i+1]
	}
	if len(said) == 0 {
		return ""
	}
	return fmt.Sprint(said["state"], " ", said["payload"])
}

// stateIs fails unless timer_get and a listing say this of a key, with its payload.
func (x *index) stateIs(key, want string) {
	x.t.Helper()
	if got := x.stateOf(key); got != want {
		x.t.Errorf("timer_get %s: %q, want %q", key, got, want)
	}
	var listed []string
	err := list(x.t, x.Schedule, keys.Namespace{}, func(timer query.Timer) bool {
		if timer.Key.String() == key && !timer.Beside {
			listed = append(listed, fmt.Sprint(timer.State, " ", string(timer.Payload)))
		}
		return true
	})
	if err != nil {
		x.t.Fatal(err)
	}
	if want == "" && len(listed) > 0 || want != "" && !slices.Contains(listed, want) {
		x.t.Errorf("list of %s: %q, want %q", key, listed, want)
	}
}

// A timer is shown until it is settled, with its state.
func TestStates(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.stateIs(k, "")
	x.do("FCALL", "timer_set", 1, k, "v1", "PX", brief)
	x.stateIs(k, "pending v1")
	x.awaitExpiry(k)
	x.stateIs(k, "owed v1") // in its place in the schedule
	x.observe(expired(k))
	x.stateIs(k, "owed v1") // because of its event
	firings := x.claims(k + " expired v1")
	x.stateIs(k, "firing v1")
	if err := x.Release(t.Context(), schedule.Outcomes(schedule.OutcomeGivenBack, firings...)); err != nil {
		t.Fatal(err)
	}
	x.stateIs(k, "owed v1")
	firings = x.claims(k + " expired v1")
	given := firings[0].Outcome(schedule.OutcomeGivenBack)
	given.Pause, given.MayBeStored = time.Hour, true
	if err := x.Release(t.Context(), []schedule.Outcome{given}); err != nil {
		t.Fatal(err)
	}
	x.stateIs(k, "firing v1") // nobody knows whether it was published
	x.do("FCALL", "timer_set", 1, k, "v2", "PX", 60_000)
	x.stateIs(k, "pending v2")
	x.do("PERSIST", k)
	x.observe(touched(k))
	x.stateIs(k, "firing v1")
	if err := x.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
		t.Fatal(err)
	}
	x.stateIs(k, "")
	x.isEmpty()
}

// A lease that is over leaves a timer firing: its event may be in NATS.
func TestStateAfterALease(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("FCALL", "timer_set", 1, k, "v1", "PX", 20)
	x.awaitExpiry(k)
	c := x.claimFor(time.Millisecond)
	x.awaitClock(c.At.UnixMilli() + 5)
	x.stateIs(k, "firing v1")
	if got := x.do("FCALL", "timer_cancel", 1, k); got != "fired" {
		t.Errorf("cancel: %v, want fired", got)
	}
	x.claims(k + " reclaim v1")
}

// timer_cancel cancels unclaimed timers, and reports correctly whether there were any.
func TestCancelOfWhatIsDue(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		arrange func(x *index)
		want    string
		fires   []string
	}{
		{"due", func(*index) {}, "cancelled", nil},
		{"owed", func(x *index) { x.observe(expired(k)) }, "cancelled", nil},
		{"owed, and set again", func(x *index) { x.do("FCALL", "timer_set", 1, k, "v2", "PX", 60_000) }, "cancelled",
			nil},
		{"owed, and the newer one deleted", func(x *index) {
			x.do("FCALL", "timer_set", 1, k, "v2", "PX", 60_000)
			x.do("DEL", k)
			x.observe(gone(k))
		}, "cancelled", nil},
		{"given back", func(x *index) { x.giveBack(false) }, "cancelled", nil},
		{"given back, perhaps published", func(x *index) { x.giveBack(true) }, "fired", []string{k + " deadline v1"}},
		{"claimed", func(x *index) { x.claims(k + " deadline v1") }, "fired", nil},
		{"claimed, and set again", func(x *index) {
			x.claims(k + " deadline v1")
			x.do("FCALL", "timer_set", 1, k, "v2", "PX", 60_000)
		}, "cancelled", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			x.do("FCALL", "timer_set", 1, k, "v1", "PX", 20)
			x.awaitExpiry(k)
			test.arrange(x)
			if got := x.do("FCALL", "timer_cancel", 1, k); got != test.want {
				t.Errorf("cancel: %v, want %s", got, test.want)
			}
			again := "unknown"
			if test.want == "fired" {
				again = "fired"
			}
			if got := x.do("FCALL", "timer_cancel", 1, k); got != again {
				t.Errorf("cancel again: %v, want %s", got, again)
			}
			x.observe(expired(k)) // that of the cancelled one may still come
			x.claims(test.fires...)
		})
	}
}

// giveBack claims the due timers, and gives them back.
func (x *index) giveBack(stored bool) {
	x.t.Helper()
	firings, _ := x.claimOnce()
	for i := range firings {
		firings[i].MayBeStored = stored
	}
	if err := x.Release(x.t.Context(), schedule.Outcomes(schedule.OutcomeGivenBack, firings...)); err != nil {
		x.t.Fatal(err)
	}
}

// A timer that may have been published is firing, also without its tombstone, as after a long pause.
func TestGivenBackLongAgo(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("FCALL", "timer_set", 1, k, "v1", "PX", 20)
	x.awaitExpiry(k)
	x.giveBack(true)
	x.do("DEL", keys.Single.Fired())
	x.stateIs(k, "firing v1")
	if got := x.do("FCALL", "timer_cancel", 1, k); got != "fired" {
		t.Errorf("cancel: %v, want fired", got)
	}
	x.claims(k + " deadline v1")
}

// NX counts owed timers as present, also a due one that nobody has moved yet.
func TestSetBesideAnOwedTimer(t *testing.T) {
	t.Parallel()
	for _, trigger := range []string{"expired", "deadline"} {
		t.Run(trigger, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			x.do("FCALL", "timer_set", 1, k, "v1", "PX", 20)
			x.awaitExpiry(k)
			if trigger == "expired" {
				x.observe(expired(k))
			}
			if got := x.do("FCALL", "timer_set", 1, k, "v2", "PX", 60_000, "NX"); got != nil {
				t.Errorf("NX: %v, want nil", got)
			}
			x.stateIs(k, "owed v1")
			if got := x.do("FCALL", "timer_set", 1, k, "v3", "PX", 60_000, "XX"); got == nil {
				t.Error("XX: nil, want a due time")
			}
			x.claims(k + " " + trigger + " v1")
			x.stateIs(k, "pending v3")
		})
	}
}

// A timer beside a newer one is shown once the newer one is gone: pending, then owed.
func TestStateOfWhatIsLeftBeside(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("FCALL", "timer_set", 1, k, "newer", "PX", 60_000)
	due := x.retry("event", x.redisNow()+brief, 2, "again")
	if got := x.stateOf(k); got != "pending newer" {
		t.Errorf("timer_get: %q, want the newer timer", got)
	}
	x.do("DEL", k)
	x.observe(gone(k))
	if got := x.stateOf(k); got != "pending again" {
		t.Errorf("timer_get: %q, want the retry", got)
	}
	x.awaitClock(due)
	if got := x.stateOf(k); got != "owed again" {
		t.Errorf("timer_get: %q, want the retry", got)
	}
	if got := x.do("FCALL", "timer_cancel", 1, k); got != "cancelled" {
		t.Errorf("cancel: %v", got)
	}
	if got := x.stateOf(k); got != "" {
		t.Errorf("timer_get of the cancelled timer: %q", got)
	}
}

// A full window is given back at once where timerd stops while NATS is away. All of it is owed then.
func TestManyAreGivenBack(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	const n = 4200
	x.setDue(n, "")
	var firings []schedule.Firing
	for len(firings) < n {
		firings = append(firings, x.claimFor(lease).Firings...)
	}
	if err := x.Release(t.Context(), schedule.Outcomes(schedule.OutcomeGivenBack, firings...)); err != nil {
		t.Fatal(err)
	}
	last := firings[n-1].Key.String()
	if got := x.stateOf(last); !strings.HasPrefix(got, "owed ") {
		t.Errorf("timer_get: %q, want an owed timer", got)
	}
	if got := x.do("FCALL", "timer_cancel", 1, last); got != "cancelled" {
		t.Errorf("cancel: %v", got)
	}
	if err := x.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
		t.Fatal(err)
	}
}

// If too many timers of a key are owed, one call does not cancel them all, and says so.
func TestCancelOfManyOwedTimers(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	const n = 700
	for range n {
		x.do("FCALL", "timer_set", 1, k, "v", "PX", 1)
		x.awaitClock(x.due(k))
	}
	calls := 0
	for {
		calls++
		reply, err := x.rdb.FCall(t.Context(), "timer_cancel", []string{k}).Result()
		if err == nil {
			if reply != "cancelled" {
				t.Errorf("cancel: %v", reply)
			}
			break
		}
		if !strings.HasPrefix(err.Error(), "AGAIN timerd has cancelled 300 owed timers of this key") {
			t.Fatal(err)
		}
	}
	if calls < n/300 {
		t.Errorf("%d calls, want each to cancel 300 at most", calls)
	}
	x.claims()
	x.isEmpty()
}

// A listing shows retries that wait beside a newer timer, and firing timers in the order of their due times.
func TestListOfStates(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	for i := range 5 {
		x.do("FCALL", "timer_set", 1, fmt.Sprint("app1:b:c:", i), "v", "PX", 20+i)
	}
	x.awaitExpiry("app1:b:c:4")
	x.observe(expired("app1:b:c:3"))
	x.claims("app1:b:c:0 deadline v", "app1:b:c:1 deadline v", "app1:b:c:2 deadline v", "app1:b:c:3 expired v",
		"app1:b:c:4 deadline v")
	x.do("FCALL", "timer_set", 1, "app1:b:c:5", "v", "PX", 60_000)
	x.do("FCALL", "timer_set", 1, k, "newer", "PX", 90_000)
	x.retry("event", x.redisNow()+70_000, 2, "again")
	var got []string
	if err := list(t, x.Schedule, keys.Namespace{App: "app1"}, func(timer query.Timer) bool {
		said := fmt.Sprint(timer.Key.ID, " ", timer.State)
		if timer.Beside {
			said += " beside"
		}
		got = append(got, said)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if want := "0 firing, 1 firing, 2 firing, 3 firing, 4 firing, 5 pending, 1 pending beside, 1 pending"; strings.Join(
		got, ", ") != want {
		t.Errorf("listed %s; want %s", strings.Join(got, ", "), want)
	}
}
