package schedule_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// newOwedIndex returns an index with a timer that was set by a plain set or by timer_set, whose expired event has come,
// and that nobody has claimed.
func newOwedIndex(t *testing.T, plain bool) *index {
	t.Helper()
	x := newIndex(t)
	if plain {
		x.do("SET", k, "v1", "PX", brief)
		x.observe(touched(k))
	} else {
		x.do("FCALL", "timer_set", 1, k, "v1", "PX", 20)
	}
	x.awaitExpiry(k)
	x.observe(expired(k))
	return x
}

// The clock of a server that takes over may be behind. A timer that was owed by the other server's clock stays owed,
// whatever happens to the key meanwhile.
func TestOwedThoughTheClockGoesBack(t *testing.T) {
	t.Parallel()
	back := func(x *index) {
		x.do("ZADD", keys.Single.Due(), "XX", x.redisNow()+1500, k)
	}
	t.Run("set again", func(t *testing.T) {
		t.Parallel()
		x := newOwedIndex(t, true)
		back(x)
		x.do("SET", k, "v2", "PX", brief)
		x.observe(touched(k))
		x.awaitExpiry(k)
		x.claims(k+" expired v1", k+" deadline v2")
	})
	t.Run("set again by timer_set", func(t *testing.T) {
		t.Parallel()
		x := newOwedIndex(t, false)
		back(x)
		x.do("FCALL", "timer_set", 1, k, "v2", "PX", 30)
		x.awaitExpiry(k)
		x.claims(k+" expired v1", k+" deadline v2")
	})
	t.Run("set without a TTL and deleted", func(t *testing.T) {
		t.Parallel()
		x := newOwedIndex(t, false)
		back(x)
		x.do("SET", k, "v2")
		x.do("DEL", k)
		x.observe(touched(k), gone(k))
		x.claims(k + " expired v1")
	})
	t.Run("set without a TTL, unheard", func(t *testing.T) {
		t.Parallel()
		x := newOwedIndex(t, false)
		back(x)
		x.do("SET", k, "v2")
		x.audit()
		x.claims(k + " expired v1")
	})
}

// Nobody claims for a while. The next timer of the key is too short to be adopted.
func TestOwedAndAShortNextLife(t *testing.T) {
	t.Parallel()
	x := newOwedIndex(t, true)
	const explained = 4000 // ms for which a tombstone explains an expired event
	x.awaitClock(x.redisNow() + explained)
	x.do("SET", k, "v2", "PX", 5)
	x.awaitExpiry(k)
	x.observe(touched(k), expired(k))
	x.claims(k+" expired v1", k+" expired status 1")
}

// A cancellation of an owed timer also cancels a newer one that no hint has reported yet.
func TestOwedAndTheNextLifeCancelled(t *testing.T) {
	t.Parallel()
	x := newOwedIndex(t, true)
	x.do("SET", k, "v2", "PX", 60000)
	if said := x.do("FCALL", "timer_cancel", 1, k); said != "cancelled" {
		t.Errorf("timer_cancel: %v", said)
	}
	x.observe(gone(k))
	x.claims()
	x.isEmpty()
}

// mayWait is an expired event that may wait for the claim.
func mayWait(key string) schedule.Hint {
	return schedule.Hint{Kind: schedule.Expired, Key: key, MayWait: true}
}

// An expired event waits for the claim of its timer only if the claim is still to come.
func TestExpiredEventsThatMayWait(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	due, later, unknown, shortened, set := k+"-due", k+"-later", k+"-unknown", k+"-shortened", k+"-set"
	for _, key := range []string{due, set} {
		x.do("FCALL", "timer_set", 1, key, "v of "+key, "PX", 20)
	}
	x.do("FCALL", "timer_set", 1, shortened, "v of "+shortened, "PX", 30_000)
	x.do("PEXPIRE", shortened, 60_000)
	x.observe(touched(shortened))
	x.do("PEXPIRE", shortened, 10) // unheard
	for _, key := range []string{due, shortened, set} {
		x.awaitExpiry(key)
	}
	x.do("FCALL", "timer_set", 1, later, "v", "PX", 60_000)
	x.do("FCALL", "timer_set", 1, set, "v2", "PX", 60_000) // makes the older one owed by itself
	seen := x.observe(mayWait(due), mayWait(unknown), touched(later), mayWait(shortened), mayWait(set))
	if len(seen.Left) != 1 || seen.Left[0] != (schedule.Hint{Kind: schedule.Expired, Key: due}) {
		t.Errorf("left alone: %+v, want %s as it was given, but for MayWait", seen.Left, due)
	}
	if seen.Owed != 2 {
		t.Errorf("owed: %d, want those of %s and %s", seen.Owed, unknown, shortened)
	}
	x.claims(set+" deadline v of "+set, shortened+" expired v of "+shortened, unknown+" expired status 1",
		due+" deadline v of "+due)
	x.observe(seen.Left...) // claimed: nothing is left to be said
	x.claims()
	if x.due(set) == 0 || x.due(later) == 0 {
		t.Error("a newer timer has gone")
	}
}

// An expired event that waited, and is given before newer hints of its key, makes the timer owed.
func TestExpiredEventsThatWaitedForAClaim(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("SET", k, "v1", "PX", brief)
	x.observe(touched(k))
	x.awaitExpiry(k)
	left := x.observe(mayWait(k)).Left
	x.do("SET", k, "v2", "PX", 60_000)
	x.observe(append(left, touched(k))...)
	x.claims(k + " expired v1")
	if x.due(k) == 0 {
		t.Error("the newer timer has gone")
	}
}

// Many expired events of large timers are taken in bit by bit. Events left alone are reported once.
func TestExpiredEventsThatMayWaitAmongLargeOnes(t *testing.T) {
	t.Parallel()
	x := newLargeIndex(t)
	large := strings.Repeat("x", 200_000)
	var hints []schedule.Hint
	for i := range 12 {
		key := fmt.Sprint(k, i)
		hint := mayWait(key)
		if i%2 == 0 {
			hint = expired(key)
		}
		hints = append(hints, hint)
		x.do("FCALL", "timer_set", 1, key, large, "PX", 20)
		x.awaitExpiry(key)
	}
	seen := x.observe(hints...)
	var left []string
	for _, h := range seen.Left {
		left = append(left, strings.TrimPrefix(h.Key, k))
	}
	if got := strings.Join(left, " "); got != "1 3 5 7 9 11" || seen.Owed != 6 {
		t.Errorf("left alone: %s; owed: %d", got, seen.Owed)
	}
}

// An expired event of a key that timerd may not read does not wait: the claim would set its timer aside.
func TestExpiredEventsOfUnreadableKeysDoNotWait(t *testing.T) {
	t.Parallel()
	x := newNarrowIndex(t)
	x.do("FCALL", "timer_set", 1, denied, "p", "PX", 20)
	x.awaitExpiry(denied)
	if seen := x.observe(mayWait(denied)); seen.Owed != 1 || len(seen.Left) > 0 {
		t.Errorf("%+v, want one owed", seen)
	}
	x.claims(denied + " expired p")
}

// An expired event that waited proves as much, even after a claim by a timerd that has not heard everything.
func TestExpiredEventsThatWaitedAreEvidence(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("SET", k, "same", "PX", brief)
	x.observe(touched(k))
	x.awaitExpiry(k)
	x.HearSince(schedule.Millis(x.redisNow())) // subscribed after the due time, as after a start
	left := x.observe(mayWait(k)).Left
	x.do("SET", k, "same", "PX", 60_000)
	x.claims() // takes the key for changed
	x.observe(append(left, touched(k))...)
	if _, got := x.claimOnce(); len(got) != 1 {
		t.Errorf("claimed %v, want the timer that ran out", got)
	}
}
