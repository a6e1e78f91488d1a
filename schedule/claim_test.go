package schedule_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/timerd-io/timerd/schedule"
)

func TestClaimsOfTheDead(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("FCALL", "timer_set", 1, k, "p", "PX", 20)
	x.awaitExpiry(k)
	const short = 100 * time.Millisecond
	c := x.claimFor(short)
	if len(c.Firings) != 1 {
		t.Fatalf("claim: %+v", c)
	}
	if want := schedule.MillisOf(c.At).Add(short); c.Next != want {
		t.Errorf("next %d, want the end of the lease %d", c.Next, want)
	}
	x.claims()
	x.awaitClock(int64(c.Next))
	again := x.claims(k + " reclaim p")
	if again[0].Ref != c.Firings[0].Ref {
		t.Errorf("reclaimed as %s, want %s", again[0].Ref, c.Firings[0].Ref)
	}

	// The sleeper wakes up: it cannot give back what is another's.
	if err := x.Release(t.Context(), c.Firings); err != nil {
		t.Fatal(err)
	}
	x.claims()
	if err := x.Release(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	for _, pause := range []time.Duration{0, time.Millisecond} { // whoever claims it next knows
		again = x.claims(k + " deadline p")
		if !again[0].MayBeStored || c.Firings[0].MayBeStored {
			t.Errorf("may be stored: %v, and at first %v", again[0].MayBeStored, c.Firings[0].MayBeStored)
		}
		again[0].Pause = pause
		if err := x.Release(t.Context(), again); err != nil {
			t.Fatal(err)
		}
		x.awaitClock(x.redisNow() + 2)
	}
	// But what it has published is published.
	if err := x.Settle(t.Context(), c.Firings); err != nil {
		t.Fatal(err)
	}
	x.isEmpty()
}

func TestClaimIsBounded(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	at := x.redisNow() + 500
	const n = 2*schedule.MaxClaim + 10
	for i := range n {
		x.do("FCALL", "timer_set", 1, fmt.Sprintf("a:b:c:%d", i), "p", "PXAT", at)
	}
	x.awaitClock(at)
	seen := map[string]bool{}
	for _, want := range []int{schedule.MaxClaim, schedule.MaxClaim, 10} {
		firings, _ := x.claimOnce()
		if len(firings) != want {
			t.Fatalf("claimed %d, want %d", len(firings), want)
		}
		for _, f := range firings {
			seen[f.Ref] = true
		}
	}
	if len(seen) != n {
		t.Errorf("%d distinct firings, want %d", len(seen), n)
	}
}
