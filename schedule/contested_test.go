package schedule_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// endContest ends the time for which the timer of a key stays contested.
func (x *index) endContest(key string) {
	x.t.Helper()
	member := ":?:" + key
	if x.do("ZSCORE", keys.Single.Due(), member) == nil {
		x.t.Fatalf("%s is not contested", key)
	}
	x.do("ZADD", keys.Single.Due(), 1, member)
}

// contest has a timer of k run out unheard, with payload v1, and the key set again with v2, so that the first timer is
// contested.
func (x *index) contest() {
	x.t.Helper()
	x.do("SET", k, "v1", "PX", brief)
	x.observe(touched(k))
	x.awaitExpiry(k)
	x.do("SET", k, "v2", "PX", 60000)
	x.claims()
}

// hearFromNow makes the hints and claims from now on those of a timerd that has heard no event before.
func (x *index) hearFromNow() {
	x.t.Helper()
	x.HearSince(schedule.Millis(x.redisNow() + 1))
}

// A key was gone before its timer was due, as where Redis's clock was ahead for a moment, and an audit has seen that.
// So no expired event will come, however soon the timer was due then: it is owed when the key is set again.
func TestGoneShortlyBeforeItWasDue(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("SET", k, "v1", "PX", brief)
	x.observe(touched(k))
	due := x.due(k)
	x.do("DEL", k)
	x.hearFromNow()
	if seen := x.audit(); seen.Kept != 1 || seen.Cancelled != 0 {
		t.Fatalf("%+v, want it kept", seen)
	}
	x.awaitClock(due)
	x.do("SET", k, "v2", "PX", 60000)
	x.observe(touched(k))
	x.claims(k + " deadline v1")
}

// The newer timer fires before the event arrives that makes the older one owed.
func TestContestedOutlivesTheNewerTimer(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("SET", k, "v1", "PX", brief)
	x.observe(touched(k))
	x.awaitExpiry(k)
	x.do("SET", k, "v2", "PX", brief)
	x.claims()
	x.awaitExpiry(k)
	x.claims(k + " deadline v2")
	x.observe(expired(k), touched(k), expired(k))
	x.claims(k + " expired v1")

	// But one that was merely extended is no more.
	x.do("SET", k+"2", "v1", "PX", brief)
	x.observe(touched(k + "2"))
	x.do("PEXPIRE", k+"2", 2*brief)
	due, _ := x.rdb.ZScore(t.Context(), keys.Single.Due(), k+"2").Result()
	x.awaitClock(int64(due))
	x.claims()
	x.awaitExpiry(k + "2")
	x.claims(k + "2 deadline v1")
	x.observe(touched(k+"2"), expired(k+"2"))
	x.claims()
}

// The hint of an earlier change comes after the claim that left the timer contested, and before its expired event.
func TestContestedAndAnEarlierHint(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("SET", k, "v1", "PX", brief)
	x.observe(touched(k))
	due := x.due(k)
	x.do("APPEND", k, "+")
	x.observe(touched(k))
	x.awaitExpiry(k)
	x.do("SET", k, "v2", "PX", 60000)
	x.claims()
	x.observe(touched(k), expired(k), touched(k))
	firings := x.claims(k + " expired v1+")
	if firings[0].Due != schedule.Millis(due) {
		t.Errorf("due %d, want %d", firings[0].Due, due)
	}
}

// Two lives of a key have run out before any event of them arrives.
func TestTwoContestedLives(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("SET", k, "v1", "PX", brief)
	x.observe(touched(k))
	for _, v := range []string{"v2", "v3"} {
		x.awaitExpiry(k)
		x.do("SET", k, v, "PX", brief)
		if v == "v2" {
			x.claims()
		}
	}
	x.claims(k + " deadline v2")
	x.observe(expired(k), touched(k), expired(k), touched(k))
	x.claims(k + " expired v1")
	x.awaitExpiry(k)
	x.claims(k + " deadline v3")
}

// One batch of hints holds the end of one life of a key and the begin of another.
func TestLivesInOneBatch(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("SET", k, "first", "PX", 5)
	x.awaitExpiry(k)
	x.do("SET", k, "second", "PX", 60000)
	x.observe(touched(k), expired(k), touched(k))
	x.claims(k + " expired status 1")
	if _, err := x.rdb.ZScore(t.Context(), keys.Single.Due(), k).Result(); err != nil {
		t.Error("the second life is not pending")
	}
}

// A timerd that subscribed after the due time cannot have received the expired event, so its hint proves nothing about
// that.
func TestOnlyWhoHeardEverythingDismissesAContestedTimer(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.contest()
	x.hearFromNow()
	x.observe(touched(k))
	x.endContest(k)
	x.claims(k + " deadline v1")
}

// The event that dismissed a contested timer may be older than the contest. Then the subscription breaks, and the key's
// expired event is lost with it.
func TestDismissedAndThenTheSubscriptionBreaks(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("SET", k, "v1", "PX", brief)
	x.observe(touched(k))
	x.do("APPEND", k, "+") // its event waits in the subscription
	x.awaitExpiry(k)
	x.do("SET", k, "v2", "PX", 60000)
	x.claims()
	x.observe(touched(k))
	x.hearFromNow()
	x.do("ZADD", keys.Single.Due(), "XX", 1, ":d:"+k) // its time is over
	x.claims(k + " deadline v1")
}

// A cancelled timer does not fire, nor an older contested timer of the key, whatever events come.
func TestCancelReachesTheContested(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]func(x *index){
		"contested": func(*index) {},
		"dismissed": func(x *index) { x.observe(touched(k)) },
		"alone": func(x *index) {
			x.do("DEL", k)
			x.observe(gone(k))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			x.contest()
			before(x)
			if got := x.do("FCALL", "timer_cancel", 1, k); got != "cancelled" {
				t.Errorf("timer_cancel: %v", got)
			}
			x.hearFromNow()
			x.observe(expired(k), gone(k))
			x.claims()
			x.isEmpty()
		})
	}
}

// timer_cancel does not call a fired timer cancelled, whatever was dismissed before it.
func TestCancelAfterTheNewerTimerFired(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("SET", k, "v1", "PX", brief)
	x.observe(touched(k))
	x.awaitExpiry(k)
	x.do("SET", k, "v2", "PX", brief)
	x.claims()
	x.observe(touched(k))
	x.awaitExpiry(k)
	x.fires(k + " deadline v2")
	if got := x.do("FCALL", "timer_cancel", 1, k); got != "fired" {
		t.Errorf("timer_cancel: %v", got)
	}
}

// The state of the key at the beginning of a contest counts, not its state at the end.
func TestContestsAreDecidedWhenTheyArise(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(x *index){
		"fired": func(x *index) {
			x.awaitExpiry(k)
			x.fires(k + " deadline v1")
		},
		"deleted": func(x *index) {
			x.do("DEL", k)
			x.observe(gone(k))
		},
		"overwritten": func(x *index) {
			x.do("SET", k, "v2", "PX", 60000)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			x.do("SET", k, "v1", "PX", brief)
			x.observe(touched(k))
			due := x.due(k)
			x.do("PEXPIREAT", k, due+brief)
			x.awaitClock(due)
			x.claims()
			test(x)
			x.hearFromNow()
			x.endContest(k)
			x.claims()
		})
	}
}

// In the millisecond of its own due time a key that was set again is still there. It must not overwrite the older
// timer, which is owed, nor be lost itself.
func TestSetAgainAndDueInThisMillisecond(t *testing.T) {
	t.Parallel()
	claim := func(x *index, _ string) []string {
		firings, said := x.claimOnce()
		if err := x.Settle(x.t.Context(), schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
			x.t.Fatal(err)
		}
		return said
	}
	for name, step := range map[string]func(x *index, key string) []string{
		"claim": claim,
		"observe": func(x *index, key string) []string {
			x.observe(audited(key))
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			newer := 0
			deadline := time.Now().Add(time.Minute)
			for i := 0; i < 50 || newer == 0 && time.Now().Before(deadline); i++ {
				key := fmt.Sprintf("a:b:c:%d", i)
				due := x.redisNow() + 10
				x.do("SET", key, "v1", "PXAT", due)
				x.observe(touched(key))
				if x.do("ZSCORE", keys.Single.Due(), key) == nil {
					continue // it took too long
				}
				x.awaitClock(due)
				at := x.redisNow() + 2
				x.do("SET", key, "v2", "PXAT", at)
				for x.redisNow() < at {
					continue
				}
				said := step(x, key)
				x.awaitClock(at)
				x.observe(expired(key), touched(key), expired(key))
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

// A timer that is extended in the very millisecond of its due time fires at the new one only, although the event of its
// key running out is the first one heard.
func TestExtendedInTheMillisecondOfTheDueTime(t *testing.T) {
	t.Parallel()
	for name, firstClaimed := range map[string]bool{"claimed": true, "owed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			x.do("FCALL", "timer_set", 1, k, "p", "PX", brief)
			due := x.due(k)
			x.do("PEXPIREAT", k, due+brief)
			x.awaitClock(due)
			x.observe(touched(k))
			x.claims()
			x.awaitExpiry(k)
			if firstClaimed {
				x.claims(k + " deadline p")
				x.observe(expired(k))
				x.claims()
			} else {
				x.observe(expired(k))
				x.claims(k + " expired p")
			}
			x.hearFromNow()
			x.endContest(k)
			x.claims()
		})
	}
}

// But if the key ran out and was set again, the older timer's event comes while the newer timer is still
// pending, or comes second.
func TestSetAgainAndHeardLate(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]bool{"in time": false, "late": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			x.do("SET", k, "v1", "PX", brief)
			x.observe(touched(k))
			x.awaitExpiry(k)
			x.do("SET", k, "v2", "PX", brief)
			x.observe(touched(k)) // of a change before
			if !late {
				x.observe(expired(k))
				x.claims(k + " expired v1")
				return
			}
			x.awaitExpiry(k)
			x.observe(expired(k))
			x.claims(k + " expired v2")
			x.observe(expired(k))
			x.claims(k + " expired v1")
		})
	}
}

// A key that was evicted does not run out, so no expired event tells that the timer was due before its key was set
// again.
func TestEvictedThenSetAgainAfterItsDueTime(t *testing.T) {
	t.Parallel()
	for name, see := range map[string]func(x *index){
		"the event comes first": func(x *index) { x.observe(touched(k)) },
		"the claim comes first": func(x *index) { x.claimFor(time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			x.hearFromNow()
			x.do("FCALL", "timer_set", 1, k, "old", "PX", 1500)
			x.do("DEL", k)
			x.observe(evicted(k))
			x.awaitClock(x.due(k))
			x.do("SET", k, "new", "PX", 60_000)
			see(x)
			x.observe(touched(k))
			if got := x.do("FCALL_RO", "timer_get", 1, k); !strings.Contains(fmt.Sprint(got), "new") {
				t.Errorf("timer_get: %v, want the newer timer", got)
			}
			if pending, firing := x.count(); pending != 1 || firing != 1 {
				t.Errorf("%d pending, %d firing, want one of each", pending, firing)
			}
		})
	}
}

// Redis does nothing for two seconds. The clock by which it counts a key's idle time stands still meanwhile, so a key
// that was set again then looks as if it had been set before its older timer was due. That one is owed all the same.
func TestSetAgainAfterAStall(t *testing.T) {
	t.Parallel()
	x := newIndex(t, devserver.Directive("enable-debug-command", "local"))
	second := x.redisNow()/1000*1000 + 1000
	due := second + 1900
	x.do("SET", k, "v1", "PXAT", due)
	x.observe(touched(k))
	x.StopHearing()
	x.awaitClock(second + 50)
	stalled := x.rdb.Pipeline()
	stalled.Do(t.Context(), "DEBUG", "SLEEP", "1.95")
	stalled.Do(t.Context(), "SET", k, "v2", "PX", 60000)
	if _, err := stalled.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	x.claims(k + " deadline v1")
}
