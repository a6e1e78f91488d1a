package schedule_test

import (
	"testing"

	"github.com/timerd-io/timerd/keys"
)

// newOwedIndex returns an index with a timer that was set by a plain set or by timer_set,
// whose expired event has come, and that nobody has claimed.
func newOwedIndex(t *testing.T, plain bool) *index {
	t.Helper()
	x := newIndex(t)
	if plain {
		x.do("SET", k, "v1", "PX", 300)
		x.observe(touched(k))
	} else {
		x.do("FCALL", "timer_set", 1, k, "v1", "PX", 20)
	}
	x.awaitExpiry(k)
	x.observe(expired(k))
	return x
}

// The clock of a server that takes over may be behind. What was owed by the clock of
// the other one stays so, whatever becomes of the key meanwhile.
func TestOwedThoughTheClockGoesBack(t *testing.T) {
	t.Parallel()
	back := func(x *index) {
		x.do("ZADD", keys.Single.Due(), "XX", x.redisNow()+1500, k)
	}
	t.Run("set again", func(t *testing.T) {
		x := newOwedIndex(t, true)
		back(x)
		x.do("SET", k, "v2", "PX", 300)
		x.observe(touched(k))
		x.awaitExpiry(k)
		x.claims(k+" expired v1", k+" deadline v2")
	})
	t.Run("set again by timer_set", func(t *testing.T) {
		x := newOwedIndex(t, false)
		back(x)
		x.do("FCALL", "timer_set", 1, k, "v2", "PX", 30)
		x.awaitExpiry(k)
		x.claims(k+" expired v1", k+" deadline v2")
	})
	t.Run("set without a TTL and deleted", func(t *testing.T) {
		x := newOwedIndex(t, false)
		back(x)
		x.do("SET", k, "v2")
		x.do("DEL", k)
		x.observe(touched(k), gone(k))
		x.claims(k + " expired v1")
	})
	t.Run("set without a TTL, unheard", func(t *testing.T) {
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

// A newer timer is cancelled that no hint has told of yet.
func TestOwedAndTheNextLifeCancelled(t *testing.T) {
	t.Parallel()
	x := newOwedIndex(t, true)
	x.do("SET", k, "v2", "PX", 60000)
	if said := x.do("FCALL", "timer_cancel", 1, k); said != "cancelled" {
		t.Errorf("timer_cancel: %v", said)
	}
	x.observe(gone(k))
	x.claims(k + " expired v1")
	x.claims()
}
