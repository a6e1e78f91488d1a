package schedule_test

import (
	"fmt"
	"testing"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Bad entries of the index do not delay good ones.
func TestCorruptEntries(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.seeded = true
	for i := range 5 {
		x.do("FCALL", "timer_set", 1, fmt.Sprintf("a:b:c:%d", i), "p", "PX", 20)
	}
	x.awaitExpiry("a:b:c:4")
	x.do("ZADD", keys.Single.Due(), 1, "garbage", 2, "::", 3, ":garbage")
	x.do("ZADD", keys.Single.Firing(), 0, "garbage", 0, "-5:1:a:b:c:d")
	c := x.claimFor(lease)
	good := 0
	for _, f := range c.Firings {
		if f.Key.App == "a" && f.Key.ID != "d" {
			good++
		}
	}
	if good != 5 || len(c.Corrupt) == 0 {
		t.Errorf("%d good firings, corrupt: %v; want 5 and some", good, c.Corrupt)
	}
	if err := x.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, c.Firings...)); err != nil {
		t.Fatal(err)
	}
	x.isEmpty()
}

// An unreadable record harms no other timer.
func TestCorruptRecord(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("SET", k, "p", "PX", 60000)
	x.observe(touched(k))
	x.do("HSET", keys.Single.Data(), k, "no colon")
	x.do("DEL", k)
	x.do("SET", k+"2", "p", "PX", 60000)
	x.observe(gone(k), evicted(k), expired(k), touched(k+"2"))
	if due := x.do("ZSCORE", keys.Single.Due(), k+"2"); due == nil {
		t.Error("the timer beside the corrupt record was not adopted")
	}
}
