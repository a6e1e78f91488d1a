package schedule_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// found returns the only timer of a key, as a listing finds it, or its retry.
func (x *index) found(key string, beside bool) schedule.Which {
	x.t.Helper()
	var all []query.Timer
	err := list(x.t, x.Schedule, keys.Namespace{}, func(timer query.Timer) bool {
		if timer.Key.String() == key && timer.Beside == beside {
			all = append(all, timer)
		}
		return true
	})
	if err != nil || len(all) != 1 {
		x.t.Fatalf("found %+v, %v; want one timer of %s", all, err, key)
	}
	return all[0].Which()
}

// now stands for the time at which a timer is moved.
const now = 0

// moves sets a timer to a time in unix ms, checks the outcome, and returns the due time.
func (x *index) moves(which schedule.Which, to int64, want schedule.MoveOutcome) int64 {
	x.t.Helper()
	m := schedule.Move{Which: which}
	if to != now {
		m.To = time.UnixMilli(to)
	}
	results, err := x.Move(x.t.Context(), []schedule.Move{m})
	if err != nil || len(results) != 1 || results[0].Outcome != want {
		x.t.Fatalf("move %+v: %+v, %v; want %s", m, results, err, want)
	}
	return results[0].Due.UnixMilli()
}

// dump returns all that is in Redis.
func (x *index) dump() string {
	x.t.Helper()
	var b strings.Builder
	for _, name := range []string{keys.Single.Due(), keys.Single.Firing(), keys.Single.Fired(), keys.Single.Owed(),
		"timerd:{t}:beside"} {
		fmt.Fprintln(&b, name, x.rdb.ZRangeWithScores(x.t.Context(), name, 0, -1).Val())
	}
	for _, name := range []string{keys.Single.Data(), keys.Single.FiringData()} {
		fmt.Fprintln(&b, name, x.rdb.HGetAll(x.t.Context(), name).Val())
	}
	fmt.Fprintln(&b, x.rdb.PExpireTime(x.t.Context(), k).Val(), x.rdb.Get(x.t.Context(), k).Val())
	return b.String()
}

// A moved timer keeps everything but its due time, and fires only then.
func TestMove(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]struct {
		command []any
		want    string // the firing: attempt and payload
		late    time.Duration
	}{
		"plain": {[]any{"SET", k, "p", "PX", 60000}, "0 p", 0},
		"hash":  {nil, `0 {"f":"v"}`, 0},
		"timer_set": {[]any{"FCALL", "timer_set", 1, k, "p", "PX", 60000, "ATTEMPT", 3, "LATE", 5000}, "3 p",
			5 * time.Second},
		"value, later": {[]any{"FCALL", "timer_set", 1, k, "old", "PX", 60000}, "0 p", 0},
	} {
		for _, where := range []string{"now", "soon"} {
			t.Run(name+" "+where, func(t *testing.T) {
				t.Parallel()
				x := newIndex(t)
				if set.command == nil {
					x.do("HSET", k, "f", "v")
					x.do("PEXPIRE", k, 60000)
				} else {
					x.do(set.command...)
				}
				x.observe(touched(k))
				if name == "value, later" {
					x.do("SET", k, "p", "KEEPTTL") // unheard
				}
				was := x.found(k, false)
				to, before := int64(now), x.redisNow()
				if where == "soon" {
					to = before + 2000 // it is moved again before
				}
				due := x.moves(was, to, schedule.MoveDone)
				if to != now && due != to || to == now && (due < before || due > x.redisNow()) {
					t.Errorf("due at %d, want %d", due, to)
				}
				if to == now {
					if n := x.do("EXISTS", k); n != int64(0) {
						t.Error("its key is there")
					}
					x.moves(was, to, schedule.MoveTooLate) // again, as after a lost reply
					x.observe(gone(k), expired(k))         // the event of the move, and one that cannot be
				} else {
					if index, key := x.pendingAt(); index != to || key != to {
						t.Errorf("due at %d, its key at %d, want %d", index, key, to)
					}
					x.observe(touched(k))
					if got := x.moves(was, to, schedule.MoveDone); got != to {
						t.Errorf("again: due at %d", got)
					}
					x.claims()
					x.awaitClock(to)
				}
				firings, _ := x.claimOnce()
				if len(firings) != 1 || firings[0].Due != schedule.Millis(due) || firings[0].Late.Most != set.late ||
					fmt.Sprintf("%d %s", firings[0].Attempt, firings[0].Payload) != set.want {
					t.Fatalf("claimed %+v, want %s at %d", firings, set.want, due)
				}
				x.settle(firings[0])
				x.observe(expired(k))
				x.claims()
				x.isEmpty()
			})
		}
	}
}

// A retry beside a newer timer moves without the newer one, and without a trigger key.
func TestMoveOfWhatWaitsBeside(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("FCALL", "timer_set", 1, k, "newer", "PX", 60000)
	x.retry("id", x.redisNow()+30000, 2, "again")
	to := x.redisNow() + 40000
	which := x.found(k, true)
	x.moves(which, to, schedule.MoveDone)
	x.moves(which, to, schedule.MoveDone) // again
	x.moves(which, to+1, schedule.MoveChanged)
	which = x.found(k, true)
	if which.Due.UnixMilli() != to || which.Attempt != 2 {
		t.Errorf("moved to %+v, want %d", which, to)
	}
	if index, key := x.pendingAt(); index != x.due(k) || key != x.due(k) {
		t.Errorf("the newer one is due at %d, its key at %d", index, key)
	}
	x.moves(which, now, schedule.MoveDone)
	x.moves(which, now, schedule.MoveTooLate)
	firings := x.claims(k + " deadline again")
	if firings[0].Attempt != 2 {
		t.Errorf("attempt %d", firings[0].Attempt)
	}
	x.settle(firings[0])
	x.do("FCALL", "timer_cancel", 1, k)
	x.isEmpty()
	if n := x.do("EXISTS", "timerd:{t}:beside"); n != int64(0) {
		t.Error("a name is left")
	}
}

// Of a timer that repeats, one occurrence moves: the one after it stays in its place on the grid.
func TestMoveOfAnOccurrence(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	first := x.repeats("p", "EVERY", 60000)
	x.moves(x.found(k, false), first+10000, schedule.MoveDone)
	x.nextIs(first+10000, "payload p state pending repeat every 1m0s occurrence 1")
	x.becomesDue()
	x.settle(x.occurs("every 1m0s 1 p"))
	x.nextIs(first+60000, "payload p state pending repeat every 1m0s occurrence 2")
	if got := x.do("FCALL", "timer_cancel", 1, k); got != "cancelled" {
		t.Error(got)
	}
	x.isOver()
}

// A move to now leaves the occurrence and the plan alone: it adds a single firing with an id of its own. A changed
// value counts for it too, and a limit on lateness.
func TestFiringARepetitionLeavesItsPlan(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	first := x.repeats("p", "EVERY", 60000, "LATE", 5000)
	found := x.found(k, false)
	const times = 5
	for range times {
		x.moves(found, now, schedule.MoveDone)
	}
	ids := map[string]bool{}
	x.awaitClock(x.redisNow() + 1000) // timers due in the next ms
	for _, f := range x.claims(slices.Repeat([]string{k + " deadline p"}, times)...) {
		ids[keys.EventID(f.Key.String(), int64(f.Due), max(f.Attempt, 1))] = true
		if f.Occurrence != nil || f.Late.Most != 5*time.Second {
			t.Errorf("%+v, want no occurrence, and the limit", f)
		}
		x.settle(f)
	}
	if len(ids) != times {
		t.Errorf("ids %v, want %d", ids, times)
	}
	x.nextIs(first, "payload p state pending late 5000 repeat every 1m0s occurrence 1")
	x.do("SET", k, "newer", "KEEPTTL")
	m := schedule.Move{Which: found}
	if results := x.MoveTwice(t.Context(), m); results[0] != results[1] || results[0].Outcome != schedule.MoveDone {
		t.Errorf("a repeated call: %+v", results)
	}
	x.settle(x.claims(k + " deadline newer")[0])
	x.observe(touched(k))
	x.becomesDue()
	x.settle(x.occurs("every 1m0s 1 newer"))
	x.nextIs(first+60000, "payload newer state pending late 5000 repeat every 1m0s occurrence 2")
	if got := x.do("FCALL", "timer_cancel", 1, k); got != "cancelled" {
		t.Error(got)
	}
	x.isOver()
}

// A timer that is not as it was found is left alone, and counted as changed.
func TestMoveOfWhatHasChanged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(x *index)
		want   schedule.MoveOutcome
	}{
		{"set again", func(x *index) { x.do("FCALL", "timer_set", 1, k, "new", "PX", 70000) }, schedule.MoveChanged},
		{"set again after it had fired", func(x *index) {
			x.becomesDue()
			x.fires(k + " deadline p")
			x.do("FCALL", "timer_set", 1, k, "new", "PX", 70000)
		}, schedule.MoveChanged},
		{"cancelled", func(x *index) { x.do("FCALL", "timer_cancel", 1, k) }, schedule.MoveChanged},
		{"deleted", func(x *index) { x.do("DEL", k); x.observe(gone(k)) }, schedule.MoveChanged},
		{"deleted, unheard", func(x *index) { x.do("DEL", k) }, schedule.MoveChanged},
		{"persisted, unheard", func(x *index) { x.do("PERSIST", k) }, schedule.MoveChanged},
		{"extended", func(x *index) { x.do("PEXPIRE", k, 70000); x.observe(touched(k)) }, schedule.MoveChanged},
		{"extended, unheard", func(x *index) { x.do("PEXPIRE", k, 70000) }, schedule.MoveChanged},
		{"set without a TTL, unheard", func(x *index) { x.do("SET", k, "v") }, schedule.MoveChanged},
		{"forgotten", func(x *index) {
			x.seeded = true
			x.do("DEL", keys.Single.Due(), keys.Single.Data())
		}, schedule.MoveChanged},
		// not its time
		{"due", func(x *index) { x.do("DEL", k); x.do("ZADD", keys.Single.Due(), "XX", 1, k) }, schedule.MoveChanged},
		{"fired", func(x *index) {
			x.becomesDue()
			x.fires(k + " deadline p")
		}, schedule.MoveTooLate},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			x.do("FCALL", "timer_set", 1, k, "p", "PX", 60000)
			was := x.found(k, false)
			c.change(x)
			for _, to := range []int64{now, far()} {
				before := x.dump()
				x.moves(was, to, c.want)
				if after := x.dump(); after != before {
					t.Errorf("from\n%sto\n%s", before, after)
				}
			}
		})
	}
}

// A due timer is not moved: it is too late, or it is held.
func TestMoveOfWhatIsDue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		arrange func(x *index)
		want    schedule.MoveOutcome
	}{
		{"due", func(*index) {}, schedule.MoveTooLate},
		{"due, to be held", func(x *index) { x.hold("app1") }, schedule.MoveHeld},
		{"held", func(x *index) { x.hold("app1"); x.claims() }, schedule.MoveHeld},
		{"owed", func(x *index) { x.observe(expired(k)) }, schedule.MoveTooLate},
		{"owed, to be held", func(x *index) { x.observe(expired(k)); x.hold("app1") }, schedule.MoveHeld},
		{"claimed", func(x *index) { x.claims(k + " deadline p") }, schedule.MoveTooLate},
		{"claimed long ago", func(x *index) { x.claims(k + " deadline p"); x.do("DEL", keys.Single.Fired()) },
			schedule.MoveTooLate},
		{"given back", func(x *index) { x.giveBack(true) }, schedule.MoveTooLate},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			x.do("FCALL", "timer_set", 1, k, "p", "PX", 20)
			x.awaitExpiry(k)
			was := x.found(k, false)
			c.arrange(x)
			for _, to := range []int64{now, far()} {
				before := x.dump()
				x.moves(was, to, c.want)
				if after := x.dump(); after != before {
					t.Errorf("from\n%sto\n%s", before, after)
				}
			}
		})
	}
}

// If the TTL of a plain timer was changed unheard, its key is right.
func TestMoveByTheKey(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("SET", k, "p", "PX", 60000)
	x.observe(touched(k))
	was := x.found(k, false)
	x.do("SET", k, "new", "PX", 70000)
	was.Due = time.UnixMilli(x.due(k))
	to := far()
	x.moves(was, to, schedule.MoveDone)
	if index, key := x.pendingAt(); index != to || key != to {
		t.Errorf("due at %d, its key at %d, want %d", index, key, to)
	}
	x.stateIs(k, "pending new")
	x.observe(touched(k))
	x.stateIs(k, "pending new")
}

// An evicted timer has no key, and gets none.
func TestMoveOfAnEvictedTimer(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("SET", k, "p", "PX", 60000)
	x.observe(touched(k))
	x.do("DEL", k)
	x.observe(evicted(k))
	to := far()
	x.moves(x.found(k, false), to, schedule.MoveDone)
	if index, key := x.pendingAt(); index != to || key != 0 {
		t.Errorf("due at %d, its key at %d, want %d and none", index, key, to)
	}
	x.moves(x.found(k, false), now, schedule.MoveDone)
	x.fires(k + " deadline p")
	x.isEmpty()
}

// A timer whose key timerd may not write stays as it is.
func TestMoveOfADeniedTimer(t *testing.T) {
	t.Parallel()
	for _, rights := range []string{"", "%R~app2:*"} {
		t.Run(rights, func(t *testing.T) {
			t.Parallel()
			x := newNarrowIndex(t)
			if rights != "" {
				x.do("ACL", "SETUSER", "timerd", rights)
			}
			x.do("FCALL", "timer_set", 1, denied, "p", "PX", 60000)
			was := x.found(denied, false)
			before := x.dump()
			x.moves(was, now, schedule.MoveDenied)
			x.moves(was, far(), schedule.MoveDenied)
			if after := x.dump(); after != before {
				t.Errorf("from\n%sto\n%s", before, after)
			}
		})
	}
}

// A plain key that no timerd has heard of is somebody else's.
func TestMoveOfAForeignKey(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("SET", k, "p", "PX", 60000)
	key, _ := keys.Parse(k)
	x.moves(schedule.Which{Key: key, Due: time.UnixMilli(x.due(k))}, now, schedule.MoveChanged)
	if x.do("GET", k) != "p" {
		t.Error("it was touched")
	}
}

// A timer set under the key of a timer that fires now is another one, and both fire.
func TestMoveNowIsNotOverwritten(t *testing.T) {
	t.Parallel()
	for _, again := range [][]any{
		{"SET", k, "new", "PX", 1000}, // observed before that, on a busy machine too
		{"FCALL", "timer_set", 1, k, "new", "PX", 1000},
	} {
		x := newIndex(t)
		x.do("SET", k, "p", "PX", 60000)
		x.observe(touched(k))
		x.moves(x.found(k, false), now, schedule.MoveDone)
		x.do(again...)
		x.observe(gone(k), touched(k))
		x.awaitExpiry(k)
		x.fires(k+" deadline new", k+" deadline p")
		x.isEmpty()
	}
}

// A timer moved to now can be cancelled until it is claimed.
func TestMoveNowThenCancel(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("FCALL", "timer_set", 1, k, "p", "PX", 60000)
	x.moves(x.found(k, false), now, schedule.MoveDone)
	x.stateIs(k, "owed p")
	if got := x.do("FCALL", "timer_cancel", 1, k); got != "cancelled" {
		t.Errorf("timer_cancel: %v", got)
	}
	x.claims()
	x.isEmpty()
}

// If two move a timer at once, one of them succeeds.
func TestMoveByTwo(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	for range 50 {
		x.do("FCALL", "timer_set", 1, k, "p", "PX", 60000)
		was := x.found(k, false)
		var moved atomic.Int64
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				m := schedule.Move{Which: was}
				if i%2 == 1 {
					m.To = was.Due.Add(time.Minute)
				}
				results, err := x.Move(context.Background(), []schedule.Move{m})
				if err != nil {
					t.Error(err)
				} else if results[0].Outcome == schedule.MoveDone {
					moved.Add(1)
				}
			})
		}
		wg.Wait()
		if n := x.do("ZCARD", keys.Single.Due()).(int64) + x.do("ZCARD", keys.Single.Firing()).(int64); n != 1 ||
			moved.Load() == 0 {
			t.Fatalf("%d timers, moved %d times", n, moved.Load())
		}
		x.do("FLUSHDB")
	}
}

// However fast a timer is set, made to fire, claimed and settled: no two firings have an id in common.
func TestMoveNeverSharesAnID(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	key, _ := keys.Parse(k)
	seen := map[string]int{}
	for i := range 300 {
		due, _ := x.do("FCALL", "timer_set", 1, k, "p", "PX", 60000).(int64)
		if i%3 == 0 {
			x.retry(fmt.Sprint(i), due-1000, 2, "r")
			x.moves(schedule.Which{Key: key, Due: time.UnixMilli(due - 1000), Attempt: 2, Beside: true}, now,
				schedule.MoveDone)
		}
		x.moves(schedule.Which{Key: key, Due: time.UnixMilli(due)}, now, schedule.MoveDone)
		due, _ = x.do("FCALL", "timer_set", 1, k, "p", "PX", 60000).(int64)
		x.moves(schedule.Which{Key: key, Due: time.UnixMilli(due)}, now, schedule.MoveDone)
		if i%2 == 0 {
			continue
		}
		for {
			firings, _ := x.claimOnce()
			for _, f := range firings {
				seen[fmt.Sprint(f.Due, " ", max(f.Attempt, 1))]++
				x.settle(f)
			}
			if len(firings) == 0 && x.do("EXISTS", keys.Single.Firing(), keys.Single.Due()) == int64(0) {
				break
			}
		}
	}
	for id, n := range seen {
		if n > 1 {
			t.Errorf("%d firings have the id %s", n, id)
		}
	}
	if len(seen) != 700 {
		t.Errorf("%d ids, want 700", len(seen))
	}
}

// A timer that is moved to the time of another one of its key goes a little further.
func TestMoveToATakenTime(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("FCALL", "timer_set", 1, k, "newer", "PX", 60000)
	x.retry("id", x.due(k)+1000, 2, "again")
	if got := x.moves(x.found(k, false), x.due(k)+1000, schedule.MoveDone); got != x.due(k)+1001 {
		t.Errorf("due at %d, want %d", got, x.due(k)+1001)
	}
	if got := x.moves(x.found(k, true), x.due(k)+1001, schedule.MoveDone); got != x.due(k)+1002 {
		t.Errorf("due at %d, want %d", got, x.due(k)+1002)
	}
	results, err := x.Move(t.Context(), []schedule.Move{{Which: x.found(k, false), To: time.Now().AddDate(11, 0, 0)}})
	if err == nil || results[0].Err == nil {
		t.Errorf("in 11 years: %+v, %v", results, err)
	}
}
