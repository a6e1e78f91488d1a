package schedule_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// callsOn returns the number of steps that a server has run, as functions and as scripts.
func callsOn(t *testing.T, n *schedule.Node) (calls int) {
	t.Helper()
	info, err := n.Server().Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"fcall", "evalsha"} {
		n := 0
		_, rest, _ := strings.Cut(info, "cmdstat_"+command+":")
		_, _ = fmt.Sscanf(rest, "calls=%d", &n)
		calls += n
	}
	return calls
}

// knowMany makes partitions of a node know so many apps, all without timers.
func knowMany(t *testing.T, n *schedule.Node, partitions []keys.Partition, apps int) {
	t.Helper()
	known := make([]redis.Z, apps)
	for i := range known {
		known[i] = redis.Z{Score: 1, Member: fmt.Sprint("nobody", i)}
	}
	for _, p := range partitions {
		if err := n.Server().ZAdd(t.Context(), p.Known(), known...).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// Few calls claim, settle and observe due timers in many slots of a master, and the messages of the claims explain all
// their events.
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
	calls := func() int { return callsOn(t, n) }
	before := calls()
	if o, err := query.CountOverdue(ctx, n, time.Hour); err != nil || o.Timers != 0 {
		t.Errorf("%+v is overdue of timers that are not due: %v", o, err)
	}
	if made := calls() - before; made > len(n.Master().Partitions)/256 {
		t.Errorf("%d calls to see that none of %d partitions has overdue timers", made, len(n.Master().Partitions))
	}
	before = calls()
	if seen, err := n.Observe(ctx, hints, time.Time{}); err != nil || seen.Adopted != len(hints) {
		t.Fatalf("%d of %d adopted: %v", seen.Adopted, len(hints), err)
	}
	if made := calls() - before; made > len(hints)/16 {
		t.Errorf("%d calls to observe %d keys", made, len(hints))
	}
	audit, err := n.BeginAudit(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var partitions []keys.Partition
	for _, h := range hints {
		partitions = append(partitions, x.Partition(h.Key))
	}
	before = calls()
	if _, err := audit.Partitions(ctx, partitions, schedule.MaxHints, 0, nil); err != nil {
		t.Fatal(err)
	}
	if made := calls() - before; made > len(hints)/16 {
		t.Errorf("%d calls to audit %d partitions", made, len(hints))
	}
	knowMany(t, n, partitions, 300)
	before = calls()
	if _, err := audit.Partitions(ctx, partitions, schedule.MaxHints, 0, nil); err != nil {
		t.Fatal(err)
	}
	if made := calls() - before; made < len(hints) {
		t.Errorf("%d calls to audit %d partitions that know 300 apps each", made, len(hints))
	}
	for _, c := range audit.Counted() {
		if c.Pending < int64(len(hints)) {
			t.Errorf("%d timers are counted, want %d", c.Pending, len(hints))
		}
	}
	// The first claim from a server finds out whether its data are older than before.
	if _, err := claimFrom(ctx, n, n.Master().Partitions[0], lease); err != nil {
		t.Fatal(err)
	}
	var fired []schedule.Firing
	testenv.Eventually(t, time.Minute, func() error {
		var requests []schedule.ClaimRequest
		for key := range want {
			requests = append(requests,
				schedule.ClaimRequest{Partition: x.Partition(key), Known: schedule.MillisOf(time.Now())})
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
	atOnce := schedule.Look{}
	for range 2 { // the first one counts all
		if found, err := n.Sweep(ctx, atOnce); err != nil || len(found.Heads) > 0 {
			t.Errorf("claimed timers are told of before their leases end: %v, %v", found.Heads, err)
		}
	}
	if found, err := n.Sweep(ctx, schedule.Look{Within: 24 * time.Hour}); err != nil || len(found.Heads) < len(hints) {
		t.Errorf("%d heads, want those of %d pending timers too: %v", len(found.Heads), len(hints), err)
	}
	before = calls()
	busy, err := n.DueFor(ctx, time.Hour)
	if made := calls() - before; err != nil || made > 0 {
		t.Errorf("%d calls after a sweep to see which partitions may have overdue timers: %v", made, err)
	}
	for key := range want {
		if !slices.Contains(busy.Partitions, x.Partition(key)) {
			t.Errorf("the partition of %s is missing among the partitions that may have overdue timers", key)
		}
	}
	if len(busy.Partitions) != len(want) {
		t.Errorf("%d partitions may have overdue timers, want %d: no pending timer is due", len(busy.Partitions),
			len(want))
	}
	if o, err := query.CountOverdue(ctx, n, 0); err != nil || o.Timers != int64(len(want)) {
		t.Errorf("%+v is overdue of %d timers that are claimed: %v", o, len(want), err)
	}
	before = calls()
	if err := x.Settle(ctx, schedule.Outcomes(schedule.OutcomeFired, fired...)); err != nil {
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

// A partition with an overwritten index delays no other partition that the same calls claim, observe and settle.
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
	// Nor does it delay the observed ones.
	var hints []schedule.Hint
	for i := 0; len(hints) < 20 ||
		!slices.ContainsFunc(hints, func(h schedule.Hint) bool { return x.Partition(h.Key) == broken }); i++ {
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
	err := x.Settle(ctx, schedule.Outcomes(schedule.OutcomeFired,
		append([]schedule.Firing{{Ref: "1/a:b:c:none", Partition: broken}}, fired...)...))
	var failed *schedule.PartError
	if !errors.As(err, &failed) ||
		slices.ContainsFunc(failed.Left, func(o schedule.Outcome) bool { return o.Partition() != broken }) {
		t.Errorf("settled: %v", err)
	}
	for _, p := range partitions {
		if left, err := x.rdb.ZCard(ctx, p.Firing()).Result(); p != broken && (err != nil || left > 0) {
			t.Errorf("%d firings are left in %s: %v", left, p, err)
		}
	}
}
