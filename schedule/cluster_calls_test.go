package schedule_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// What is due in many slots of a master is claimed, settled and observed by few calls, and what the claims say explains all of it.
func TestClusterFewCalls(t *testing.T) {
	t.Parallel()
	x := newClusterIndex(t)
	ctx := t.Context()
	all := nodes(t, x.Schedule)
	n := all[0]
	sub := n.Server().SSubscribe(ctx, n.ClaimedChannel())
	defer sub.Close()
	if _, err := sub.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	var hints []schedule.Hint
	want := map[string]bool{}
	for i := 0; len(want) < 64; i++ {
		key, plain := fmt.Sprintf("a:b:c:%d", i), fmt.Sprintf("a:b:plain:%d", i)
		if n.Owns(x.Partition(key)) {
			want[key] = true
			x.set(key, "p", 100*time.Millisecond)
		}
		if n.Owns(x.Partition(plain)) {
			hints = append(hints, schedule.Hint{Kind: schedule.Touched, Key: plain})
			if err := x.rdb.Set(ctx, plain, i, time.Hour).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	calls := func() (calls int) {
		t.Helper()
		info, err := n.Server().Info(ctx, "commandstats").Result()
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(info, "cmdstat_evalsha:")
		_, _ = fmt.Sscanf(rest, "calls=%d", &calls)
		return calls
	}
	before := calls()
	if seen, err := n.Observe(ctx, hints, time.Time{}); err != nil || seen.Adopted != len(hints) {
		t.Fatalf("%d of %d adopted: %v", seen.Adopted, len(hints), err)
	}
	if made := calls() - before; made > len(hints)/16 {
		t.Errorf("%d calls to observe %d keys", made, len(hints))
	}
	var fired []schedule.Firing
	testenv.Eventually(t, time.Minute, func() error {
		var requests []schedule.ClaimRequest
		for key := range want {
			requests = append(requests, schedule.ClaimRequest{Partition: x.Partition(key), Known: schedule.MillisOf(time.Now())})
		}
		before = calls()
		for _, c := range n.Claim(ctx, requests, lease) {
			if c.Err != nil {
				return c.Err
			}
			fired = append(fired, c.Firings...)
		}
		if len(fired) < len(want) {
			return fmt.Errorf("%d of %d claimed", len(fired), len(want))
		}
		return nil
	}, "all to be claimed")
	if made := calls() - before; made > 4 {
		t.Errorf("%d calls to claim from 64 partitions", made)
	}
	before = calls()
	if err := x.Settle(ctx, fired); err != nil {
		t.Fatal(err)
	}
	if made := calls() - before; made > 2 {
		t.Errorf("%d calls to settle in 64 partitions", made)
	}
	for len(want) > 0 {
		message, err := sub.ReceiveMessage(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for key := range keys.ParseClaimed([]byte(strings.TrimPrefix(message.Payload, keys.ClaimedMessage(0)))) {
			delete(want, string(key))
		}
	}
}

// A partition whose index somebody has overwritten holds up none of those that are claimed, observed and settled by the same calls.
func TestClusterBrokenPartition(t *testing.T) {
	t.Parallel()
	x := newClusterIndex(t)
	ctx := t.Context()
	n := nodes(t, x.Schedule)[0]
	var partitions []keys.Partition
	for i := 0; len(partitions) < 3; i++ {
		key := fmt.Sprintf("a:b:c:%d", i)
		if p := x.Partition(key); n.Owns(p) && !slices.Contains(partitions, p) {
			partitions = append(partitions, p)
			x.set(key, "p", 100*time.Millisecond)
		}
	}
	broken := partitions[1]
	var requests []schedule.ClaimRequest
	for _, p := range partitions {
		requests = append(requests, schedule.ClaimRequest{Partition: p, Known: schedule.MillisOf(time.Now())})
	}
	overwrite := func(name string) {
		t.Helper()
		if err := errors.Join(x.rdb.Del(ctx, name).Err(), x.rdb.Set(ctx, name, "mine", 0).Err()); err != nil {
			t.Fatal(err)
		}
	}
	overwrite(broken.Fired())
	var fired []schedule.Firing
	testenv.Eventually(t, time.Minute, func() error {
		for _, c := range n.Claim(ctx, requests, lease) {
			if c.Err != nil && c.Partition != broken {
				return c.Err
			}
			fired = append(fired, c.Firings...)
		}
		if len(fired) < 2 {
			return fmt.Errorf("%d of 2 claimed", len(fired))
		}
		return nil
	}, "the others to be claimed")
	// Nor of those that are observed.
	var hints []schedule.Hint
	for i := 0; len(hints) < 20 || !slices.ContainsFunc(hints, func(h schedule.Hint) bool { return x.Partition(h.Key) == broken }); i++ {
		key := fmt.Sprintf("a:b:c:%d", i)
		if n.Owns(x.Partition(key)) {
			hints = append(hints, schedule.Hint{Kind: schedule.Touched, Key: key})
			if err := x.rdb.Set(ctx, key, i, time.Hour).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := n.Observe(ctx, hints, time.Time{}); err == nil {
		t.Error("the hints of a broken partition are taken in")
	}
	for _, h := range hints {
		p := x.Partition(h.Key)
		if err := x.rdb.ZScore(ctx, p.Due(), h.Key).Err(); p != broken && err != nil {
			t.Errorf("%s is not adopted: %v", h.Key, err)
		}
	}
	overwrite(broken.Firing())
	err := x.Settle(ctx, append([]schedule.Firing{{Ref: "1/a:b:c:none", Partition: broken}}, fired...))
	var failed *schedule.PartError
	if !errors.As(err, &failed) || slices.ContainsFunc(failed.Left, func(f schedule.Firing) bool { return f.Partition != broken }) {
		t.Errorf("settled: %v", err)
	}
	for _, p := range partitions {
		if left, err := x.rdb.ZCard(ctx, p.Firing()).Result(); p != broken && (err != nil || left > 0) {
			t.Errorf("%d firings are left in %s: %v", left, p, err)
		}
	}
}

// A sweep finds what is due in every slot, and when leases end in time for the next sweep that looks for them.
func TestClusterSweeps(t *testing.T) {
	t.Parallel()
	x := newClusterIndex(t)
	ctx := t.Context()
	x.set("a:b:c:due", "p", 500*time.Millisecond)
	x.set("a:b:c:later", "p", time.Hour)
	n := nodeOf(t, x.Schedule, x.Partition("a:b:c:due"))
	if _, err := n.Sweep(ctx, time.Second, time.Minute); err != nil { // the first one looks at all in full
		t.Fatal(err)
	}
	has := func(within, lease time.Duration) bool {
		found, err := n.Sweep(ctx, within, lease)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(found.Heads, func(h schedule.Head) bool { return h.Partition == x.Partition("a:b:c:due") })
	}
	if !has(time.Minute, time.Hour) {
		t.Error("a sweep does not find what is due within a minute")
	}
	testenv.Eventually(t, time.Minute, func() bool {
		firings, err := claimFrom(ctx, n, x.Partition("a:b:c:due"), time.Hour)
		return err == nil && len(firings) == 1
	}, "it to be claimed")
	if has(time.Minute, time.Millisecond) || !has(2*time.Hour, time.Millisecond) {
		t.Error("a sweep does not find when a lease ends")
	}
	testenv.Eventually(t, time.Minute, func() bool { return has(time.Second, time.Hour) },
		"a sweep that looks a second ahead to find when a lease of an hour ends")
}
