package schedule_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

func TestClaimsOfTheDead(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("FCALL", "timer_set", 1, k, "p", "PX", 20)
	x.awaitExpiry(k)
	const short = brief * time.Millisecond
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

	// The sleeper wakes up: it cannot give back another timerd's claim.
	if err := x.Release(t.Context(), schedule.Outcomes(schedule.OutcomeGivenBack, c.Firings...)); err != nil {
		t.Fatal(err)
	}
	x.claims()
	if err := x.Release(t.Context(), schedule.Outcomes(schedule.OutcomeGivenBack, again...)); err != nil {
		t.Fatal(err)
	}
	for _, pause := range []time.Duration{0, time.Millisecond} { // the next claim knows
		again = x.claims(k + " deadline p")
		if !again[0].MayBeStored || c.Firings[0].MayBeStored {
			t.Errorf("may be stored: %v, and at first %v", again[0].MayBeStored, c.Firings[0].MayBeStored)
		}
		given := again[0].Outcome(schedule.OutcomeGivenBack)
		given.Pause = pause
		if err := x.Release(t.Context(), []schedule.Outcome{given}); err != nil {
			t.Fatal(err)
		}
		x.awaitClock(x.redisNow() + 2)
	}
	// But its published events stay published.
	if err := x.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, c.Firings...)); err != nil {
		t.Fatal(err)
	}
	x.isEmpty()
}

func TestClaimIsBounded(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	at := x.redisNow() + 3000
	const n = 2*schedule.MaxClaim + 10
	x.setMany("a", n, at, 0)
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

// One call in eight removes as many old tombstones as eight calls add, two per firing: one of its key, one of its id.
func TestClaimsRemoveAsManyTombstonesAsTheyAdd(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	old := []any{"ZADD", keys.Single.Fired()}
	for i := range 8 * 2 * schedule.MaxClaim {
		old = append(old, 1, i)
	}
	x.do(old...)
	if c := x.ClaimInFull(t.Context(), schedule.ClaimRequest{Partition: keys.Single}, lease); c.Err != nil || c.Untidy {
		t.Errorf("%+v, and some are left", c)
	}
	if left := x.do("ZCARD", keys.Single.Fired()); left != int64(0) {
		t.Errorf("%v tombstones are left", left)
	}
}

// An event's time is never later than any clock in agreement with Redis's, and never earlier than the claim, however
// slow the claim.
func TestNowIsNeverAhead(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	proxy := testenv.NewProxy(t, server.Addr())
	x := newIndexFor(t, server.Client(func(o *redis.Options) { o.Addr = proxy.Addr() }), server.Client(), 1000)
	claim := func(delay time.Duration) (f schedule.Firing, took time.Duration) {
		t.Helper()
		x.do("FCALL", "timer_set", 1, k, "p", "PX", 1)
		x.awaitClock(x.redisNow() + 2)
		proxy.Delay(delay)
		began := time.Now()
		result := x.Node.Claim(t.Context(), []schedule.ClaimRequest{{Partition: keys.Single}}, time.Minute)[0]
		took = time.Since(began)
		if result.Err != nil || len(result.Firings) != 1 {
			t.Fatalf("claimed %+v", result)
		}
		f = result.Firings[0]
		if said, now := f.Now(), time.Now(); said.After(now) || said.Before(f.ClaimedAt) {
			t.Errorf("%v at %v, claimed at %v", said, now, f.ClaimedAt)
		}
		return f, took
	}
	const slow = 200 * time.Millisecond
	claim(slow)
	for took := slow; took > slow/10; { // a busy machine takes its time
		_, took = claim(0)
	}
	// By now the offset of the clocks is known, whatever the way to Redis is like: the answer's way is no part of
	// the delay.
	f, took := claim(slow)
	if f.Took > took-slow/2 {
		t.Errorf("a claim of %v, half of it the way back, was read within %v", took, f.Took)
	}
}
