package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// clusterIndex is a schedule on a Redis Cluster of three masters.
type clusterIndex struct {
	*schedule.Schedule
	t       testing.TB
	cluster *testenv.RedisCluster
	rdb     *redis.ClusterClient
	seeded  bool // the test has written timers into the index by itself, or removed some
}

func newClusterIndex(t testing.TB) *clusterIndex {
	t.Helper()
	cluster := testenv.Cluster(t, 3, false)
	rdb := cluster.Client()
	s := schedule.New(rdb, 1000)
	load(t, s)
	x := &clusterIndex{Schedule: s, t: t, cluster: cluster, rdb: rdb}
	t.Cleanup(x.isAccounted)
	return x
}

// isAccounted is index.isAccounted for a cluster.
func (x *clusterIndex) isAccounted() {
	ctx := context.Background()
	accounts, err := keysOf(ctx, x.rdb, "timerd:{*}:account")
	for _, key := range accounts {
		err = errors.Join(err, x.rdb.ZAddNX(ctx, key, redis.Z{Member: "o"}).Err())
	}
	a, failed := x.Account(ctx)
	if err == nil && failed == nil && len(a.Differences) > 0 && !x.seeded {
		x.t.Errorf("the account differs: %+v", a)
	}
}

// keysOf returns the keys of a cluster that match a pattern.
func keysOf(ctx context.Context, rdb *redis.ClusterClient, pattern string) (names []string, err error) {
	var mu sync.Mutex
	err = rdb.ForEachMaster(ctx, func(ctx context.Context, server *redis.Client) error {
		own, err := server.Keys(ctx, pattern).Result()
		mu.Lock()
		defer mu.Unlock()
		names = append(names, own...)
		return err
	})
	return names, err
}

func (x *clusterIndex) set(key, payload string, delay time.Duration) {
	x.t.Helper()
	err := x.rdb.FCall(x.t.Context(), "timer_set", []string{key}, payload, "PX", delay.Milliseconds()).Err()
	if err != nil {
		x.t.Fatal(err)
	}
}

// nodes returns the nodes of a schedule, which have heard every event since they got their partitions.
func nodes(t testing.TB, s *schedule.Schedule) []*schedule.Node {
	t.Helper()
	all, err := s.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range all {
		n.HearSince(0)
	}
	return all
}

func masters(t testing.TB, s *schedule.Schedule) []schedule.Master {
	t.Helper()
	all, err := s.Masters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// nodeOf returns the node that has a partition.
func nodeOf(t testing.TB, s *schedule.Schedule, p keys.Partition) *schedule.Node {
	t.Helper()
	for _, n := range nodes(t, s) {
		if n.Owns(p) {
			return n
		}
	}
	t.Fatalf("no node has partition %s", p)
	return nil
}

// claimFrom claims from one partition.
func claimFrom(ctx context.Context, n *schedule.Node, p keys.Partition, lease time.Duration) ([]schedule.Firing,
	error) {
	c := n.Claim(ctx, []schedule.ClaimRequest{{Partition: p}}, lease)[0]
	return c.Firings, c.Err
}

// scan adds up the scans of all nodes.
func (x *clusterIndex) scan(within time.Duration) (found schedule.DueScan) {
	x.t.Helper()
	for _, n := range nodes(x.t, x.Schedule) {
		part, err := n.ScanDue(x.t.Context(), within, time.Minute)
		if err != nil {
			x.t.Fatal(err)
		}
		found.Pending += part.Pending
		found.Firing += part.Firing
		found.Heads = append(found.Heads, part.Heads...)
		found.Moving = append(found.Moving, part.Moving...)
	}
	return found
}

// counts returns the numbers of pending timers of a partition, and of its owed and claimed firings.
func (x *clusterIndex) counts(p keys.Partition) (pending, firing int64) {
	x.t.Helper()
	pending, err1 := x.rdb.ZCard(x.t.Context(), p.Due()).Result()
	firing, err2 := x.rdb.ZCard(x.t.Context(), p.Firing()).Result()
	if err := errors.Join(err1, err2); err != nil {
		x.t.Fatal(err)
	}
	return pending, firing
}

// Timers lie in the slots of their keys, and take every step there.
func TestClusterTimers(t *testing.T) {
	t.Parallel()
	x := newClusterIndex(t)
	ctx := t.Context()
	const n = 500
	const ahead = 10_000 // in ms: a busy machine may take long to set them all
	_, err := x.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i := range n {
			key := fmt.Sprintf("app%d:{%d}:t:%d", i%3, i%50, i)
			if i%2 == 0 {
				pipe.FCall(ctx, "timer_set", []string{key}, i, "PX", ahead+i)
			} else {
				pipe.Set(ctx, key, i, time.Duration(ahead+i)*time.Millisecond)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var hints []schedule.Hint
	for i := range n {
		hints = append(hints, schedule.Hint{Kind: schedule.Touched, Key: fmt.Sprintf("app%d:{%d}:t:%d", i%3, i%50, i)})
	}
	seen, err := nodes(t, x.Schedule)[0].Observe(ctx, hints, time.Time{})
	if err != nil || seen.Adopted != n/2 || len(seen.Heads) != 50 {
		t.Fatalf("observed %d adopted, %d heads, %v; want %d and 50", seen.Adopted, len(seen.Heads), err, n/2)
	}
	if found := x.scan(time.Hour); found.Pending != n || len(found.Heads) != 50 || len(found.Moving) != 0 {
		t.Errorf("scan: %d pending in %d partitions, want %d in 50", found.Pending, len(found.Heads), n)
	}
	var listed []int64
	err = list(t, x.Schedule, keys.Namespace{}, func(p query.Timer) bool {
		listed = append(listed, p.Due.UnixMilli())
		return true
	})
	if err != nil || len(listed) != n || !slices.IsSorted(listed) {
		t.Errorf("listed %d timers, in order %v, %v; want %d", len(listed), slices.IsSorted(listed), err, n)
	}
	var apps []string
	for _, node := range nodes(t, x.Schedule) {
		some, err := node.Apps(ctx)
		if err != nil {
			t.Error(err)
		}
		apps = append(apps, some...)
	}
	if slices.Sort(apps); !slices.Equal(slices.Compact(apps), []string{"app0", "app1", "app2"}) {
		t.Errorf("apps %q", apps)
	}
	fired := map[string]int{}
	testenv.Eventually(t, time.Minute, func() error {
		var requests []schedule.ClaimRequest
		for _, h := range x.scan(0).Heads {
			requests = append(requests, schedule.ClaimRequest{Partition: h.Partition})
		}
		var all []schedule.Firing
		for _, c := range nodes(t, x.Schedule)[0].Claim(ctx, requests, lease) {
			if c.Err != nil {
				return c.Err
			}
			all = append(all, c.Firings...)
		}
		for _, f := range all {
			fired[f.Key.String()]++
		}
		if err := x.Settle(ctx, schedule.Outcomes(schedule.OutcomeFired, all...)); err != nil {
			return err
		}
		if len(fired) < n {
			return fmt.Errorf("%d of %d fired", len(fired), n)
		}
		return nil
	}, "all to fire")
	for key, times := range fired {
		if times != 1 {
			t.Errorf("%s fired %d times", key, times)
		}
	}
	if found := x.scan(time.Hour); found.Pending+found.Firing != 0 {
		t.Errorf("left: %+v", found)
	}
}

// content returns the values of a slot's keys, on whichever server they are.
func (x *clusterIndex) content(slot int) map[string]string {
	x.t.Helper()
	all := map[string]string{}
	for _, node := range x.cluster.Nodes {
		rdb := node.Client()
		names, err := rdb.ClusterGetKeysInSlot(x.t.Context(), slot, 1000).Result()
		if err != nil {
			x.t.Fatal(err)
		}
		for _, name := range names {
			if _, twice := all[name]; twice {
				x.t.Errorf("%s is on two nodes", name)
			}
			// Asked for key by key, a node returns its part of a slot that moves.
			dump, err := rdb.Pipelined(x.t.Context(), func(pipe redis.Pipeliner) error {
				pipe.Do(x.t.Context(), "ASKING")
				pipe.Dump(x.t.Context(), name)
				return nil
			})
			if err != nil {
				x.t.Fatal(err)
			}
			all[name] = dump[1].String()
		}
	}
	return all
}

// While a slot moves, its keys are on two servers, and each step on it is refused as a whole, at every moment of the
// move.
func TestClusterSlotOnTheMove(t *testing.T) {
	t.Parallel()
	x := newClusterIndex(t)
	ctx := t.Context()
	key := func(id string) string { return "a:{moving}:c:" + id }
	p := x.Partition(key(""))
	slot := p.Slot()
	from := x.cluster.Master(slot)
	to := x.cluster.Nodes[0]
	if to == from {
		to = x.cluster.Nodes[1]
	}

	// A partition with all of its keys, and claims to settle and to give back.
	for _, id := range []string{"claimed", "returned"} {
		x.set(key(id), "p", time.Millisecond)
	}
	var claimed []schedule.Firing
	testenv.Eventually(t, time.Minute, func() error {
		firings, err := claimFrom(ctx, nodeOf(t, x.Schedule, p), p, time.Hour)
		claimed = append(claimed, firings...)
		if len(claimed) < 2 {
			err = errors.Join(err, fmt.Errorf("%d claimed", len(claimed)))
		}
		return err
	}, "both to be claimed")
	for _, id := range []string{"pending", "deleted"} {
		x.set(key(id), "p", time.Hour)
	}
	retry := schedule.Retry{EventID: "event-1", Key: keys.Key{App: "a", Module: "{moving}", Type: "c", ID: "retried"},
		Due: schedule.MillisOf(time.Now().Add(time.Hour)), Attempt: 2}
	if _, ok, err := x.Retry(ctx, retry); err != nil || !ok {
		t.Fatalf("retry: %v, %v", ok, err)
	}
	before := x.content(slot)

	// The client gives up soon, as clients do.
	hasty := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{x.cluster.Nodes[2].Addr()}, MaxRedirects: 1})
	defer hasty.Close()
	plan := schedule.New(hasty, 1000)
	if _, err := plan.Load(ctx); err != nil {
		t.Fatal(err)
	}
	node := nodeOf(t, plan, p)
	steps := map[string]func(ctx context.Context) error{
		"timer_set of a new key": func(ctx context.Context) error {
			return hasty.FCall(ctx, "timer_set", []string{key("new")}, "p", "PX", 100000).Err()
		},
		"timer_set of a pending key": func(ctx context.Context) error {
			return hasty.FCall(ctx, "timer_set", []string{key("pending")}, "q", "PX", 100000).Err()
		},
		"timer_cancel": func(ctx context.Context) error {
			return hasty.FCall(ctx, "timer_cancel", []string{key("pending")}).Err()
		},
		"timer_get": func(ctx context.Context) error {
			return hasty.FCallRO(ctx, "timer_get", []string{key("pending")}).Err()
		},
		"observe": func(ctx context.Context) error {
			hints := []schedule.Hint{{Kind: schedule.Gone, Key: key("deleted")},
				{Kind: schedule.Expired, Key: key("unknown")}}
			seen, err := node.Observe(ctx, hints, time.Now())
			late, ok := errors.AsType[*schedule.MovingError](err)
			if !ok || !slices.Equal(late.Hints, hints) || seen.Cancelled+seen.Owed > 0 {
				t.Errorf("observe: %+v, %v; want all hints back", seen, err)
			}
			return err
		},
		"claim": func(ctx context.Context) error {
			_, err := claimFrom(ctx, node, p, lease)
			return err
		},
		"settle": func(ctx context.Context) error {
			return plan.Settle(ctx, schedule.Outcomes(schedule.OutcomeFired, claimed[:1]...))
		},
		"release": func(ctx context.Context) error {
			return plan.Release(ctx, schedule.Outcomes(schedule.OutcomeGivenBack, claimed[1:]...))
		},
		"retry": func(ctx context.Context) error {
			r := retry
			r.EventID = "event-2"
			_, _, err := plan.Retry(ctx, r)
			return err
		},
		"move": func(ctx context.Context) error {
			which := schedule.Which{Key: keys.Key{App: "a", Module: "{moving}", Type: "c", ID: "pending"},
				Due: time.Now()}
			_, err := plan.Move(ctx, []schedule.Move{{Which: which}})
			return err
		},
		"inspect": func(ctx context.Context) error {
			_, err := query.Inspect(ctx, plan, retry.Key, 100)
			return err
		},
		"a step after ASKING": func(ctx context.Context) error {
			var cmd *redis.Cmd
			_, _ = to.Client().Pipelined(ctx, func(pipe redis.Pipeliner) error { // cmd has the error
				pipe.Do(ctx, "ASKING")
				cmd = pipe.FCall(ctx, plan.StepsName()+"_retry", []string{p.Prefix()}, "event-3", key("retried"),
					time.Now().Add(time.Hour).UnixMilli(), 2, "", "p")
				return nil
			})
			return cmd.Err()
		},
		"audit": func(ctx context.Context) error {
			audit, err := node.BeginAudit(ctx)
			if err == nil {
				_, err = audit.Partitions(ctx, []keys.Partition{p}, 100, 0, nil)
			}
			return err
		},
	}
	refuses := func(when string) {
		t.Helper()
		for _, name := range slices.Sorted(maps.Keys(steps)) {
			if err := steps[name](ctx); !schedule.IsMoving(err) {
				t.Errorf("%s, %s: %v, want TRYAGAIN", when, name, err)
			}
		}
	}

	// Other slots go on beside it.
	x.set("a:b:c:elsewhere", "p", time.Millisecond)
	var elsewhere []schedule.Firing
	var err error
	testenv.Eventually(t, time.Minute, func() bool {
		other := x.Partition("a:b:c:elsewhere")
		elsewhere, err = claimFrom(ctx, nodeOf(t, x.Schedule, other), other, time.Hour)
		return err == nil && len(elsewhere) == 1
	}, "the other one to be claimed")

	x.cluster.OpenSlot(slot, from, to)
	refuses("nothing has moved")
	err = x.Settle(ctx, schedule.Outcomes(schedule.OutcomeFired, append(elsewhere, claimed[0])...))
	part, ok := errors.AsType[*schedule.PartError](err)
	if !ok || len(part.Left) != 1 || part.Left[0].Ref != claimed[0].Ref || !schedule.IsMoving(err) {
		t.Errorf("settle in two slots: %v, want one left", err)
	}
	if _, firing := x.counts(elsewhere[0].Partition); firing != 0 {
		t.Errorf("%d firing elsewhere, want it settled", firing)
	}
	moved := 0
	for x.cluster.MoveKeys(slot, 1, from, to) > 0 {
		moved++
		refuses(fmt.Sprintf("%d keys have moved", moved))
	}
	if moved != len(before) {
		t.Errorf("%d keys moved, want %d", moved, len(before))
	}
	if after := x.content(slot); !maps.Equal(before, after) {
		t.Errorf("the slot held\n%q\nand now\n%q", before, after)
	}
	if found := x.scan(time.Hour); !slices.Contains(found.Moving, p) {
		t.Errorf("the scan finds moving %v, want %s", found.Moving, p)
	}
	x.cluster.CloseSlot(slot, from, to)

	// Afterwards each step works, and the deleted timer is cancelled.
	if err := x.rdb.Del(ctx, key("deleted")).Err(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, func() error {
		for _, name := range slices.Sorted(maps.Keys(steps)) {
			if name == "observe" {
				continue
			}
			if err := steps[name](ctx); err != nil && !errors.Is(err, redis.Nil) {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	}, "every step to work")
	seen, err := nodeOf(t, x.Schedule, p).Observe(ctx, []schedule.Hint{{Kind: schedule.Gone, Key: key("deleted")}},
		time.Time{})
	if err != nil || seen.Cancelled > 1 {
		t.Errorf("observe: %+v, %v", seen, err)
	}
	if pending, firing := x.counts(p); pending < 2 || firing != 1 {
		t.Errorf("%d pending, %d firing; want the new one, the retries and the one that was given back", pending,
			firing)
	}
}

// A slot that begins to move during a listing does not stop the listing of the others.
func TestClusterListsWhatIsThere(t *testing.T) {
	t.Parallel()
	x := newClusterIndex(t)
	const n, moves = 300, 250
	for i := range n {
		x.set(fmt.Sprintf("a:b:c:%d", i), "p", time.Hour+time.Duration(i)*time.Second)
	}
	slot := keys.PartitionOf(fmt.Sprintf("a:b:c:%d", moves)).Slot()
	from, to := x.cluster.Master(slot), x.cluster.Master((slot+keys.Slots/3)%keys.Slots)
	listed, open := 0, false
	err := query.Pages(t.Context(), x.Schedule, query.Query{}, func(p query.Page) bool {
		if listed += len(p.Timers); listed > 0 && !open {
			x.cluster.OpenSlot(slot, from, to)
			open = true
		}
		return true
	})
	if moving, is := errors.AsType[*query.MovingError](err); !is || moving.Slots != 1 || listed != n-1 {
		t.Errorf("listed %d, %v; want %d, and one slot that moves", listed, err, n-1)
	}
}

// A failover or SCRIPT FLUSH may forget the scripts at any moment.
func TestClusterForgetsScripts(t *testing.T) {
	t.Parallel()
	x := newClusterIndex(t)
	ctx := t.Context()
	var hints []schedule.Hint
	for i := range 100 {
		key := fmt.Sprintf("a:b:c:%d", i)
		x.rdb.Set(ctx, key, i, time.Hour)
		hints = append(hints, schedule.Hint{Kind: schedule.Touched, Key: key})
	}
	for _, node := range x.cluster.Nodes {
		node.Client().ScriptFlush(ctx)
	}
	if seen, err := nodes(t, x.Schedule)[0].Observe(ctx, hints, time.Time{}); err != nil || seen.Adopted != 100 {
		t.Errorf("%+v, %v; want 100 adopted", seen, err)
	}
	if err := x.TrimRetried(ctx, time.Hour); err != nil {
		t.Error(err)
	}
}
