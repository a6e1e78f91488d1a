package client_test

import (
	"testing"
	"time"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/testenv/timerdtest"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// A timer has a state until it is settled.
func TestStates(t *testing.T) {
	t.Parallel()
	rdb := timerdtest.Redis(t)
	timers, index := client.New(rdb), schedule.New(rdb, schedule.DefaultMaxPayload)
	const key = "shop:order:timeout:42"
	stateIs := func(want client.State) {
		t.Helper()
		if timer, found, err := timers.Get(t.Context(), key); err != nil || found != (want != "") ||
			timer.State != want {
			t.Errorf("Get = %+v, %v, %v; want %q", timer, found, err, want)
		}
	}
	stateIs("")
	due, err := timers.Set(t.Context(), key, []byte("p"), client.After(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	timerdtest.AwaitDue(t, rdb, due)
	stateIs(client.Owed)
	nodes, err := index.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	claimed := nodes[0].Claim(t.Context(), []schedule.ClaimRequest{{Partition: keys.Single}}, time.Minute)[0]
	if claimed.Err != nil || len(claimed.Firings) != 1 {
		t.Fatalf("claimed %+v", claimed)
	}
	stateIs(client.Firing)
	if _, err := timers.Set(t.Context(), key, nil, client.After(time.Hour)); err != nil {
		t.Fatal(err)
	}
	stateIs(client.Pending)
	if outcome, err := timers.Cancel(t.Context(), key); err != nil || outcome != client.Cancelled {
		t.Errorf("Cancel = %s, %v", outcome, err)
	}
	stateIs(client.Firing)
	if err := index.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, claimed.Firings...)); err != nil {
		t.Fatal(err)
	}
	stateIs("")
}

// So many timers of one key may be owed that one call does not cancel them all. Its neighbours have their own answers.
func TestCancelOfManyOwedTimers(t *testing.T) {
	t.Parallel()
	rdb := timerdtest.Redis(t)
	timers := client.New(rdb)
	const crowded, other = "shop:order:timeout:crowded", "shop:order:timeout:other"
	for _, cancel := range []func() ([]client.CancelResult, error){
		func() ([]client.CancelResult, error) {
			outcome, err := timers.Cancel(t.Context(), crowded)
			return []client.CancelResult{{Outcome: outcome, Err: err}}, err
		},
		func() ([]client.CancelResult, error) {
			if _, err := timers.Set(t.Context(), other, nil, client.After(time.Hour)); err != nil {
				t.Fatal(err)
			}
			return timers.CancelMany(t.Context(), []string{crowded, other})
		},
	} {
		for range 150 {
			due, err := timers.Set(t.Context(), crowded, nil, client.After(time.Millisecond))
			if err != nil {
				t.Fatal(err)
			}
			timerdtest.AwaitDue(t, rdb, due)
		}
		results, err := cancel()
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range results {
			if r.Err != nil || r.Outcome != client.Cancelled {
				t.Errorf("timer %d: %+v, want it cancelled", i, r)
			}
		}
		if timer, found, err := timers.Get(t.Context(), crowded); found || err != nil {
			t.Errorf("left: %+v, %v", timer, err)
		}
	}
}
