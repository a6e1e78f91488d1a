package schedule_test

import (
	"fmt"
	"testing"

	"github.com/timerd-io/timerd/keys"
)

// timer_cancel with UNTIL cancels the timers due by then, and leaves the key's other timers as they are.
func TestCancelUntil(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		arrange func(x *index)
		until   func(x *index) int64
		want    string
		left    []string // firings in the end, with their triggers
	}{
		{"pending, at its due time", func(x *index) { x.setIn(k, "v", 1500) }, func(x *index) int64 { return x.due(k) },
			"cancelled", nil},
		{"pending, later", func(x *index) { x.setIn(k, "v", 1500) }, func(x *index) int64 { return x.due(k) - 1 },
			"unknown", []string{"deadline v"}},
		{"plain, not adopted, later", func(x *index) { x.do("SET", k, "v", "PX", 1500) },
			func(x *index) int64 { return x.due(k) - 1 }, "unknown", []string{"deadline v"}},
		{"plain, not adopted", func(x *index) { x.do("SET", k, "v", "PX", 1500) },
			func(x *index) int64 { return x.due(k) }, "cancelled", nil},
		{"moved to later, unheard", func(x *index) {
			x.setIn(k, "v", 1000)
			x.do("PEXPIRE", k, 1500)
		}, func(x *index) int64 { return x.due(k) - 400 }, "unknown", []string{"deadline v"}},
		{"moved to earlier, unheard", func(x *index) {
			x.setIn(k, "v", 600_000)
			x.do("PEXPIRE", k, 1500)
		}, func(x *index) int64 { return x.due(k) }, "cancelled", nil},
		{"evicted, later", func(x *index) {
			x.setIn(k, "v", 1500)
			x.observe(evicted(k))
			x.do("DEL", k)
		}, func(x *index) int64 { return x.due(k) - 1 }, "unknown", []string{"deadline v"}},
		{"retry beside a newer timer", func(x *index) {
			x.setIn(k, "newer", 1500)
			x.retry("event", x.due(k)-500, 2, "again")
		}, func(x *index) int64 { return x.due(k) - 1 }, "cancelled", []string{"deadline newer"}},
		{"timer with a retry that is due later", func(x *index) {
			x.setIn(k, "newer", 1000)
			x.retry("event", x.due(k)+500, 2, "again")
		}, func(x *index) int64 { return x.due(k) }, "cancelled", []string{"deadline again"}},
		{"owed, and set again", func(x *index) {
			x.setIn(k, "owed", 20)
			x.awaitExpiry(k)
			x.setIn(k, "newer", 1500)
		}, func(x *index) int64 { return x.redisNow() }, "cancelled", []string{"deadline newer"}},
		{"owed, and due later", func(x *index) {
			x.setIn(k, "owed", 20)
			x.awaitExpiry(k)
			x.observe(expired(k))
		}, func(x *index) int64 { return x.due(k) - 1 }, "fired", []string{"expired owed"}},
		{"due, and later", func(x *index) {
			x.setIn(k, "due", 20)
			x.awaitExpiry(k)
		}, func(x *index) int64 { return x.due(k) - 1 }, "unknown", []string{"deadline due"}},
		{"contested, and set again", func(x *index) {
			x.do("SET", k, "old", "PX", brief)
			x.observe(touched(k))
			x.awaitExpiry(k)
			x.do("SET", k, "newer", "PX", 1500)
			x.observe(touched(k)) // the expired event of the first may be still to come
		}, func(x *index) int64 { return x.redisNow() }, "cancelled", []string{"deadline newer"}},
		{"no timer any more", func(x *index) {
			x.setIn(k, "v", 1500)
			x.do("SET", k, "no timer")
		}, func(x *index) int64 { return x.redisNow() + 1000 }, "unknown", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			test.arrange(x)
			if got := x.do("FCALL", "timer_cancel", 1, k, "UNTIL", test.until(x)); got != test.want {
				t.Errorf("timer_cancel: %v, want %s", got, test.want)
			}
			x.observe(touched(k)) // its own change of the key, or the missed event
			x.awaitClock(x.redisNow() + 2000)
			var want []string
			for _, left := range test.left {
				want = append(want, k+" "+left)
			}
			x.fires(want...)
			for _, name := range []string{keys.Single.Due(), keys.Single.Firing(), keys.Single.Owed()} {
				if n := x.do("ZCARD", name); n != int64(0) {
					t.Errorf("%v left in %s", n, name)
				}
			}
		})
	}
}

// UNTIL may cancel the occurrence that would have continued its repetition. The client's own timer beside it stays.
func TestCancelUntilEndsRepetition(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.hold("app1")
	x.repeats("p", "EVERY", 60000)
	x.becomesDue()
	x.claims()
	x.do("SET", k, "own", "PX", 60000)
	x.observe(touched(k))
	if got := x.do("FCALL", "timer_cancel", 1, k, "UNTIL", x.redisNow()); got != "cancelled" {
		t.Errorf("timer_cancel: %v, want cancelled", got)
	}
	if serial := x.do("ZSCORE", keys.Single.Repeat(), k); serial != nil {
		t.Errorf("the repetition goes on, with the serial %v", serial)
	}
	x.stateIs(k, "pending own")
}

// FROM cancels one of several timers of a key, and all others stay as they are.
func TestCancelOneOfSeveral(t *testing.T) {
	t.Parallel()
	for _, held := range []bool{false, true} {
		x := newIndex(t)
		x.setIn(k, "older", 20)
		x.awaitExpiry(k)
		older := x.due(k)
		if held {
			x.hold("app1")
			x.claims()
		}
		x.setIn(k, "newer", 60_000)
		early, late := x.due(k)-1000, x.due(k)+1000
		x.retry("early", early, 2, "early")
		x.retry("late", late, 2, "late")
		state := map[bool]string{false: "owed", true: "held"}[held]
		all := []string{"pending 2 early beside", "pending 0 newer", "pending 2 late beside", state + " 0 older"}
		if held {
			all[3] += " by app1"
		}
		x.shows(k, all...)
		for _, c := range []struct {
			due  int64
			left []string
		}{
			{x.due(k) + 1, all},
			{late, []string{all[0], all[1], all[3]}},
			{x.due(k), []string{all[0], all[3]}},
			{older, []string{all[0]}},
			{early, nil},
		} {
			want := "cancelled"
			if c.due == x.due(k)+1 {
				want = "fired" // as the older one counts
			}
			if got := x.do("FCALL", "timer_cancel", 1, k, "UNTIL", c.due, "FROM", c.due); got != want {
				t.Errorf("of the timers due at %d: %v, want %s", c.due, got, want)
			}
			x.shows(k, c.left...)
		}
		if n := x.do("EXISTS", k, keys.Single.Due(), keys.Single.Firing()); n != int64(0) {
			t.Error("something is left")
		}
	}
}

// A repetition ends if its one occurrence is cancelled, or its plan.
func TestCancelOneOccurrence(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	due := x.repeats("p", "EVERY", 60000)
	if got := x.do("FCALL", "timer_cancel", 1, k, "UNTIL", due, "FROM", due); got != "cancelled" {
		t.Errorf("timer_cancel: %v", got)
	}
	x.isOver()
	x.do("FCALL", "timer_repeat", 1, k, "p", "CRON", "@hourly")
	due = x.inspect(k).Timers[0].Due.UnixMilli()
	if got := x.do("FCALL", "timer_cancel", 1, k, "UNTIL", due, "FROM", due); got != "cancelled" {
		t.Errorf("timer_cancel of a plan: %v", got)
	}
	x.isOver()
}

// A repetition goes on if its occurrence is pending again, whatever is owed beside it.
func TestCancelUntilLeavesRepetition(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.hold("app1")
	x.setIn(k, "older", 20)
	x.awaitExpiry(k)
	x.claims()
	first := x.repeats("p", "EVERY", 60000)
	if got := x.do("FCALL", "timer_cancel", 1, k, "UNTIL", x.redisNow()); got != "cancelled" {
		t.Errorf("timer_cancel: %v, want cancelled", got)
	}
	x.nextIs(first, "payload p state pending repeat every 1m0s occurrence 1")
	if serial := x.do("ZSCORE", keys.Single.Repeat(), k); serial == nil {
		t.Error("the repetition has ended")
	}
}

// setIn sets a timer by the library, due ms milliseconds from now.
func (x *index) setIn(key, payload string, ms int) {
	x.t.Helper()
	x.do("FCALL", "timer_set", 1, key, payload, "PX", ms)
}

// Without UNTIL, or with a malformed one, only the requested change is made.
func TestCancelUntilBadTimes(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.setIn(k, "v", 60_000)
	for _, args := range [][]any{{"UNTIL"}, {"UNTIL", "soon"}, {"UNTIL", "1e3"}, {"BEFORE", 5}, {"UNTIL", 5, 6},
		{"UNTIL", 5, "FROM"}, {"UNTIL", 5, "FROM", "x"}, {"FROM", 5, "UNTIL", 6}} {
		x.refuses("takes no arguments, or UNTIL unix-ms", append([]any{"FCALL", "timer_cancel", 1, k}, args...)...)
	}
	if got := x.do("FCALL", "timer_cancel", 1, k, "until", x.due(k)); got != "cancelled" {
		t.Errorf("timer_cancel: %v", got)
	}
}

// Of many owed timers of a key those are cancelled that are due by then, some at a call.
func TestCancelUntilOfManyOwedTimers(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	const n, first = 60, 20
	var until int64
	for i := range n {
		x.setIn(k, fmt.Sprint(i), 1)
		x.awaitClock(x.due(k))
		if i == first-1 {
			until = x.due(k)
		}
	}
	if got := x.do("FCALL", "timer_cancel", 1, k, "UNTIL", until); got != "cancelled" {
		t.Errorf("timer_cancel: %v", got)
	}
	if left := x.do("ZCARD", keys.Single.Owed()); left != int64(n-first-1) { // the last one is in due
		t.Errorf("%v owed, want %d", left, n-first-1)
	}
	firings, _ := x.claimOnce()
	if len(firings) != n-first || string(firings[0].Payload) != fmt.Sprint(first) {
		t.Errorf("%d fire, want %d, those from %d on", len(firings), n-first, first)
	}
}
