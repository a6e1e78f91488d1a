package schedule_test

import (
	"fmt"
	"testing"

	"github.com/timerd-io/timerd/keys"
)

// endDoubt lets the time of a key's doubt be over.
func (x *index) endDoubt(key string) {
	x.t.Helper()
	member := ":?:" + key
	if x.do("ZSCORE", keys.Single.Due(), member) == nil {
		x.t.Fatalf("%s is not in doubt", key)
	}
	x.do("ZADD", keys.Single.Due(), 1, member)
}

// subscribeNow makes the hints and claims from now on those of a timerd that has
// heard no event before.
func (x *index) subscribeNow() {
	x.t.Helper()
	x.since = x.redisNow() + 1
}

// The newer timer fires before the event arrives that makes the older one owed.
func TestDoubtOutlivesTheNewerTimer(t *testing.T) {
	x := newIndex(t)
	x.do("SET", k, "v1", "PX", 150)
	x.hint("t " + k)
	x.expire(k)
	x.do("SET", k, "v2", "PX", 150)
	x.wants()
	x.expire(k)
	x.wants(k + " deadline v2")
	x.hint("x "+k, "t "+k, "x "+k)
	x.wants(k + " expired v1")

	// But one that was merely extended is no more.
	x.do("SET", k+"2", "v1", "PX", 150)
	x.hint("t " + k + "2")
	x.do("PEXPIRE", k+"2", 500)
	due, _ := x.rdb.ZScore(t.Context(), keys.Single.Due(), k+"2").Result()
	x.after(int64(due))
	x.wants()
	x.expire(k + "2")
	x.wants(k + "2 deadline v1")
	x.hint("t "+k+"2", "x "+k+"2")
	x.wants()
}

// The hint of an earlier change comes after the claim that left the timer in
// doubt, and before the event that it ran out.
func TestDoubtAndAnEarlierHint(t *testing.T) {
	x := newIndex(t)
	x.do("SET", k, "v1", "PX", 150)
	x.hint("t " + k)
	due, _ := x.do("PEXPIRETIME", k).(int64)
	x.do("APPEND", k, "+")
	x.hint("t " + k)
	x.expire(k)
	x.do("SET", k, "v2", "PX", 60000)
	x.wants()
	x.hint("t "+k, "x "+k, "t "+k)
	firings := x.wants(k + " expired v1+")
	if firings[0].Due != due {
		t.Errorf("due %d, want %d", firings[0].Due, due)
	}
}

// Two lives of a key have run out before any event of them arrives.
func TestTwoLivesInDoubt(t *testing.T) {
	x := newIndex(t)
	x.do("SET", k, "v1", "PX", 150)
	x.hint("t " + k)
	for _, v := range []string{"v2", "v3"} {
		x.expire(k)
		x.do("SET", k, v, "PX", 400)
		if v == "v2" {
			x.wants()
		}
	}
	x.wants(k + " deadline v2")
	x.hint("x "+k, "t "+k, "x "+k, "t "+k)
	x.wants(k + " expired v1")
	x.expire(k)
	x.wants(k + " deadline v3")
}

// One batch of hints holds the end of one life of a key and the begin of another.
func TestLivesInOneBatch(t *testing.T) {
	x := newIndex(t)
	x.do("SET", k, "first", "PX", 5)
	x.expire(k)
	x.do("SET", k, "second", "PX", 60000)
	x.hint("t "+k, "x "+k, "t "+k)
	x.wants(k + " expired status 1")
	if _, err := x.rdb.ZScore(t.Context(), keys.Single.Due(), k).Result(); err != nil {
		t.Error("the second life is not pending")
	}
}

// A timerd that subscribed after the due time cannot have heard that the key ran
// out: what it touches says nothing about that.
func TestOnlyWhoHeardEverythingDismissesADoubt(t *testing.T) {
	x := newIndex(t)
	x.do("SET", k, "v1", "PX", 150)
	x.hint("t " + k)
	x.expire(k)
	x.do("SET", k, "v2", "PX", 60000)
	x.wants()
	x.subscribeNow()
	x.hint("t " + k)
	x.endDoubt(k)
	x.wants(k + " deadline v1")
}

// What a key shows when its doubt arises counts, not what is left of it at the end.
func TestDoubtsAreDecidedWhenTheyArise(t *testing.T) {
	for name, test := range map[string]func(x *index){
		"fired": func(x *index) {
			x.expire(k)
			x.settles(k + " deadline v1")
		},
		"cancelled": func(x *index) {
			if got := x.do("FCALL", "timer_cancel", 1, k); got != "cancelled" {
				x.t.Errorf("timer_cancel: %v", got)
			}
		},
		"deleted": func(x *index) {
			x.do("DEL", k)
			x.hint("g " + k)
		},
		"overwritten": func(x *index) {
			x.do("SET", k, "v2", "PX", 60000)
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newIndex(t)
			x.do("SET", k, "v1", "PX", 150)
			x.hint("t " + k)
			due, _ := x.do("PEXPIRETIME", k).(int64)
			x.do("PEXPIREAT", k, due+500)
			x.after(due)
			x.wants()
			test(x)
			x.subscribeNow()
			x.endDoubt(k)
			x.wants()
		})
	}
}

// In the millisecond of its own due time a key that was set again is still there.
// It must not overwrite the older timer, which is owed, nor be lost itself.
func TestSetAgainAndDueInThisMillisecond(t *testing.T) {
	claim := func(x *index, _ string) []string {
		firings, said := x.claim()
		if err := x.Settle(x.t.Context(), firings); err != nil {
			x.t.Fatal(err)
		}
		return said
	}
	for name, step := range map[string]func(x *index, key string) []string{
		"claim": claim,
		"observe": func(x *index, key string) []string {
			x.hint("a " + key)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newIndex(t)
			newer := 0
			for i := range 100 {
				key := fmt.Sprintf("a:b:c:%d", i)
				due := x.redisNow() + 10
				x.do("SET", key, "v1", "PXAT", due)
				x.hint("t " + key)
				if x.do("ZSCORE", keys.Single.Due(), key) == nil {
					continue // it took too long
				}
				x.after(due)
				at := x.redisNow() + 2
				x.do("SET", key, "v2", "PXAT", at)
				for x.redisNow() < at {
					continue
				}
				said := step(x, key)
				x.after(at)
				x.hint("x "+key, "t "+key, "x "+key)
				said = append(said, claim(x, key)...)
				v1 := 0
				for _, s := range said {
					if s == key+" expired v1" || s == key+" deadline v1" {
						v1++
					}
				}
				if v1 != 1 || len(said) > 2 {
					t.Fatalf("%s: fired %q, want v1 once, and v2 if it was seen in time", key, said)
				}
				newer += len(said) - v1
			}
			if newer == 0 {
				t.Error("no newer timer fired")
			}
		})
	}
}

// A timer that is extended in the very millisecond of its due time fires at the new
// one only, although the event of that runs out is the first to be heard afterwards.
func TestExtendedInTheMillisecondOfTheDueTime(t *testing.T) {
	for name, firstClaimed := range map[string]bool{"claimed": true, "owed": false} {
		t.Run(name, func(t *testing.T) {
			x := newIndex(t)
			x.do("FCALL", "timer_set", 1, k, "p", "PX", 150)
			due, _ := x.do("PEXPIRETIME", k).(int64)
			x.do("PEXPIREAT", k, due+500)
			x.after(due)
			x.hint("t " + k)
			x.wants()
			x.expire(k)
			if firstClaimed {
				x.wants(k + " deadline p")
				x.hint("x " + k)
				x.wants()
			} else {
				x.hint("x " + k)
				x.wants(k + " expired p")
			}
			x.subscribeNow()
			x.endDoubt(k)
			x.wants()
		})
	}
}

// But if the key ran out and was set again, the event of that comes while the newer
// timer is still to come, or is the second one.
func TestSetAgainAndHeardLate(t *testing.T) {
	for name, late := range map[string]bool{"in time": false, "late": true} {
		t.Run(name, func(t *testing.T) {
			x := newIndex(t)
			x.do("SET", k, "v1", "PX", 150)
			x.hint("t " + k)
			x.expire(k)
			x.do("SET", k, "v2", "PX", 500)
			x.hint("t " + k) // of a change before
			if !late {
				x.hint("x " + k)
				x.wants(k + " expired v1")
				return
			}
			x.expire(k)
			x.hint("x " + k)
			x.wants(k + " expired v2")
			x.hint("x " + k)
			x.wants(k + " expired v1")
		})
	}
}
