package schedule_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// account returns the account, which has begun with the schedule.
func (x *index) account() schedule.Account {
	x.t.Helper()
	x.do("ZADD", keys.Single.Account(), "NX", 0, "o")
	a, err := x.Account(x.t.Context())
	if err != nil {
		x.t.Fatal(err)
	}
	return a
}

// accountIs compares the account, which has no difference.
func (x *index) accountIs(in schedule.AccountIn, out schedule.AccountOut, there schedule.AccountThere) {
	x.t.Helper()
	a := x.account()
	if a.In != in || a.Out != out || a.There != there || a.Difference != 0 || a.Opening != 0 ||
		len(a.Differences)+int(a.Without+a.Moving) > 0 {
		x.t.Errorf("the account is %+v;\nwant in %+v, out %+v, there %+v", a, in, out, there)
	}
}

// Each way into and out of the schedule counts under a kind of its own.
func TestAccountOfEachWay(t *testing.T) {
	t.Parallel()
	const far, other = 3600_000, "app1:trans:notice:2"
	type (
		in    = schedule.AccountIn
		out   = schedule.AccountOut
		there = schedule.AccountThere
	)
	due := func(x *index, args ...any) schedule.Firing {
		x.do(append([]any{"FCALL", "timer_set", 1, k, "p", "PXAT", 1}, args...)...)
		x.awaitClock(x.redisNow() + 2)
		return x.claimFor(lease).Firings[0]
	}
	settled := func(kind schedule.OutcomeKind) func(*index) {
		return func(x *index) { x.settleAs(due(x), kind) }
	}
	repeated := func(x *index) schedule.Firing {
		x.repeats("p", "EVERY", far)
		x.becomesDue()
		return x.claimFor(lease).Firings[0]
	}
	for name, c := range map[string]struct {
		do    func(*index)
		in    in
		out   out
		there there
	}{
		"set": {func(x *index) { x.do("FCALL", "timer_set", 1, k, "p", "PX", far) }, in{Set: 1}, out{},
			there{Pending: 1}},
		"set again": {func(x *index) {
			x.do("FCALL", "timer_set", 1, k, "p", "PX", far)
			x.do("FCALL", "timer_set", 1, k, "q", "PX", far)
		}, in{Set: 2}, out{Replaced: 1}, there{Pending: 1}},
		"set while due": {func(x *index) {
			x.do("FCALL", "timer_set", 1, k, "p", "PXAT", 1)
			x.awaitClock(x.redisNow() + 2)
			x.do("FCALL", "timer_set", 1, k, "q", "PX", far)
		}, in{Set: 2}, out{}, there{Pending: 1, Owed: 1}},
		"adopted, moved and deleted": {func(x *index) {
			x.do("SET", k, "p", "PX", far)
			x.observe(touched(k))
			x.do("PEXPIRE", k, 2*far)
			x.observe(touched(k))
			x.do("DEL", k)
			x.observe(gone(k))
		}, in{Adopted: 1}, out{Cancelled: 1}, there{}},
		"several adopted": {func(x *index) {
			x.do("SET", k, "p", "PX", far)
			x.do("SET", other, "p", "PX", far)
			x.observe(touched(k), touched(other), touched(k))
		}, in{Adopted: 2}, out{}, there{Pending: 2}},
		"cancelled": {func(x *index) {
			x.do("FCALL", "timer_set", 1, k, "p", "PX", far)
			x.do("FCALL", "timer_cancel", 1, k)
			x.do("FCALL", "timer_cancel", 1, k)
		}, in{Set: 1}, out{Cancelled: 1}, there{}},
		"claimed": {func(x *index) { due(x) }, in{Set: 1}, out{}, there{Firing: 1}},
		"fired twice": {func(x *index) {
			f := due(x)
			x.settle(f)
			x.settle(f)
		}, in{Set: 1}, out{Fired: 1}, there{}},
		"dead":    {settled(schedule.OutcomeDead), in{Set: 1}, out{Dead: 1}, there{}},
		"guarded": {settled(schedule.OutcomeGuarded), in{Set: 1}, out{Guarded: 1}, there{}},
		"dropped": {settled(schedule.OutcomeUnfired), in{Set: 1}, out{Dropped: 1}, there{}},
		"an expired event": {func(x *index) {
			x.do("SET", k, "p", "PX", 1)
			x.awaitClock(x.redisNow() + 3)
			x.observe(expired(k))
		}, in{Adopted: 1}, out{}, there{Owed: 1}},
		"retries": {func(x *index) {
			x.retry("1", 1, 2, "p")
			x.retry("2", x.redisNow()+far, 2, "p")
			x.retry("3", x.redisNow()+2*far, 2, "p")
			x.retry("3", x.redisNow()+2*far, 2, "p")
			x.do("FCALL", "timer_set", 1, k, "q", "PX", far)
		}, in{Retried: 3, Set: 1}, out{Replaced: 1}, there{Owed: 1, Pending: 2}},
		"an occurrence": {func(x *index) {
			x.settle(repeated(x))
			x.do("FCALL", "timer_cancel", 1, k)
		}, in{Set: 1, Repeated: 1}, out{Fired: 1, Cancelled: 1}, there{}},
		"a cron expression": {func(x *index) {
			x.do("FCALL", "timer_repeat", 1, k, "p", "CRON", "0 0 1 1 *")
			x.accountIs(in{Set: 1}, out{}, there{Owed: 1})
			x.claimFor(lease)
		}, in{Set: 1}, out{}, there{Pending: 1}},
		"a plan that is replaced": {func(x *index) {
			x.do("FCALL", "timer_repeat", 1, k, "p", "CRON", "0 0 1 1 *")
			x.do("FCALL", "timer_set", 1, k, "p", "PX", far)
		}, in{Set: 2}, out{Replaced: 1}, there{Pending: 1}},
		"held and moved": {func(x *index) {
			x.do("FCALL", "timer_set", 1, k, "p", "PX", far)
			x.moves(x.found(k, false), 0, schedule.MoveDone)
			x.hold("app1")
			x.claimFor(lease)
		}, in{Set: 1}, out{}, there{Held: 1}},
		"contested": {(*index).contest, in{Adopted: 2}, out{}, there{Contested: 1, Pending: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			c.do(x)
			x.accountIs(c.in, c.out, c.there)
		})
	}
}

// An account begins with the present timers once all timerds count, and ends when one does not.
func TestAccountBeginsOnceAllCount(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.seeded = true
	account := func() schedule.Account {
		t.Helper()
		if _, err := x.KeepAccount(t.Context()); err != nil {
			t.Fatal(err)
		}
		a, err := x.Account(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	x.do("FCALL", "timer_set", 1, k, "p", "PX", 60000)
	// by a timerd that does not count
	x.do("ZADD", keys.Single.Due(), x.redisNow()+60000, "app1:trans:notice:2")
	x.do("HSET", keys.Single.Data(), "app1:trans:notice:2", ":p")
	x.beat(schedule.Self{Instance: "a"})
	x.beat(schedule.Self{Instance: "b"})
	old := fmt.Sprint(x.do("HGET", keys.Single.About(), "b"))
	x.do("HSET", keys.Single.About(), "b", `{"version":"1"}`)
	if a := account(); a.Without != 1 || !a.Since.IsZero() || a.In.Sum()+a.There.Sum() != 0 {
		t.Errorf("beside a timerd that does not count: %+v", a)
	}
	x.do("HSET", keys.Single.About(), "b", old)
	a := account()
	if a.Opening != 2 || a.Since.IsZero() || a.Difference != 0 || a.In.Sum() != 0 || a.There.Pending != 2 {
		t.Errorf("once all count: %+v", a)
	}
	x.do("FCALL", "timer_cancel", 1, k)
	if a := account(); a.Opening != 2 || a.Out.Cancelled != 1 || a.There.Pending != 1 || a.Difference != 0 {
		t.Errorf("after the beginning: %+v", a)
	}
	x.do("HDEL", keys.Single.About(), "b")
	if a := account(); a.Without != 1 {
		t.Errorf("after one came that does not count: %+v", a)
	}
	x.do("ZREM", keys.Single.Members(), "b")
	if a := account(); a.Opening != 1 || a.Out.Sum() != 0 || a.Difference != 0 {
		t.Errorf("begun again: %+v", a)
	}
	x.do("ZREM", keys.Single.Due(), "app1:trans:notice:2") // somebody else
	differs := []schedule.AccountDifference{{Partition: keys.Single, Difference: 1}}
	if a := account(); a.Difference != 1 || fmt.Sprint(a.Differences) != fmt.Sprint(differs) {
		t.Errorf("after a loss: %+v", a)
	}
	x.restores(schedule.Restored{Timers: 1})
	if a := account(); a.Difference != 0 {
		t.Errorf("after the restoration: %+v", a)
	}
}

// A step that forgets its count is found.
func TestForgottenCountsAreFound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, with string }{
		{"payload, account.SET)", "payload)"},
		{"listed > 0, kind)", "listed > 0)"},
		{"index.forget(key, account.CANCELLED)", "index.forget(key)"},
		{"record, 0, account.RETRIED)", "record, 0)"},
		{"account.note(account.ADOPTED, math.min(", "account.note(nil, math.min("},
	} {
		x := newIndex(t)
		x.seeded = true
		x.ReplaceInLua(c.text, c.with)
		load(t, x.Schedule)
		x.do("SET", k, "p", "PX", 60000)
		x.observe(touched(k))
		for range 2 {
			x.do("FCALL", "timer_set", 1, k, "p", "PX", 60000)
		}
		x.do("FCALL", "timer_set", 1, k+"2", "p", "PX", 60000)
		x.do("FCALL", "timer_cancel", 1, k)
		x.retry("1", 1, 2, "p")
		x.settleAll()
		if a := x.account(); a.Difference == 0 {
			t.Errorf("%s instead of %s: %+v", c.with, c.text, a)
		}
	}
}

// Timers are set, adopted, deleted, repeated, held, claimed, given back and ended in any order, also in halves by
// timerds that die: after each step the account has no difference.
func TestRandomAccounts(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	rapid.Check(t, func(rt *rapid.T) {
		x.do("FLUSHDB")
		key := func() string { return fmt.Sprint("app1:trans:notice:", rapid.IntRange(1, 3).Draw(rt, "id")) }
		ms := func() int { return rapid.SampledFrom([]int{1, 5, 30, 60000}).Draw(rt, "ms") }
		events := 0
		steps := map[string]func(){
			"set":    func() { x.do("FCALL", "timer_set", 1, key(), "p", "PX", ms()) },
			"cancel": func() { x.do("FCALL", "timer_cancel", 1, key()) },
			"repeat": func() { x.do("FCALL", "timer_repeat", 1, key(), "p", "EVERY", 100, "CATCHUP", 1000) },
			"cron":   func() { x.do("FCALL", "timer_repeat", 1, key(), "p", "CRON", "* * * * *") },
			"SET":    func() { x.do("SET", key(), ms(), "PX", ms()) },
			"DEL":    func() { x.do("DEL", key()) },
			"PERSIST": func() {
				x.do("PERSIST", key())
			},
			"hint": func() {
				kinds := []func(string) schedule.Hint{touched, gone, expired, evicted}
				hint := rapid.SampledFrom(kinds).Draw(rt, "hint")
				x.observe(hint(key()), hint(key()))
			},
			"retry": func() {
				events++
				parsed, _ := keys.Parse(key())
				again := schedule.Retry{EventID: fmt.Sprint(events), Key: parsed,
					Due: schedule.Millis(x.redisNow() + int64(ms())), Attempt: rapid.IntRange(1, 2).Draw(rt, "attempt")}
				_, _, err := x.Retry(context.Background(), again)
				if err != nil {
					rt.Fatal(err)
				}
			},
			"claim": func() {
				firings := x.claimFor(20 * time.Millisecond).Firings
				switch fate := rapid.IntRange(0, 6).Draw(rt, "fate"); fate {
				case 0: // it dies
				case 1:
					if err := x.Release(context.Background(),
						schedule.Outcomes(schedule.OutcomeGivenBack, firings...)); err != nil {
						rt.Fatal(err)
					}
				default:
					if err := x.Settle(context.Background(),
						schedule.Outcomes(schedule.OutcomeKind(max(fate-3, 0)), firings...)); err != nil {
						rt.Fatal(err)
					}
				}
			},
			"audit": func() { x.audit() },
			"wait":  func() { x.awaitClock(x.redisNow() + 10) },
		}
		for range rapid.IntRange(10, 60).Draw(rt, "steps") {
			name := rapid.SampledFrom([]string{
				"set", "set", "cancel", "repeat", "cron", "SET", "SET", "DEL", "PERSIST", "hint", "hint", "retry",
				"claim", "claim", "audit", "wait",
			}).Draw(rt, "step")
			steps[name]()
			if a := x.account(); a.Difference != 0 {
				rt.Fatalf("%s: %+v", name, a)
			}
		}
	})
}
