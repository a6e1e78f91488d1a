package schedule_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// A slot without a master is reported. go-redis takes any node for its master, also a replica.
func TestClusterSlotWithoutAMaster(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cluster := testenv.Cluster(t, 1, true, devserver.Directive("cluster-require-full-coverage", "no"))
	s := schedule.New(cluster.Client(), 1000)
	masters(t, s)
	for _, node := range cluster.Nodes {
		if err := node.Client().Do(ctx, "CLUSTER", "DELSLOTS", 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		err := list(t, s, keys.Namespace{}, func(query.Timer) bool { return true })
		if moving, is := errors.AsType[*query.MovingError](err); !is || moving.Slots != 1 {
			t.Fatalf("listed: %v; want that one slot is left out", err)
		}
	}
}

// Events of a slot's timers from before the slot came to a node do not count there.
func TestClusterSinceOfSlotsThatCame(t *testing.T) {
	t.Parallel()
	x := newClusterIndex(t)
	ctx := t.Context()
	const key = "a:b:c:1"
	p := x.Partition(key)
	nodes(t, x.Schedule)
	x.set(key, "p", 50*time.Millisecond)
	testenv.Eventually(t, time.Minute, func() bool { return errors.Is(x.rdb.Get(ctx, key).Err(), redis.Nil) },
		"the key to run out")
	// It ran out, and was set again with another payload, before the slot came.
	x.rdb.Set(ctx, key, "other", time.Hour)

	from := x.cluster.Master(p.Slot())
	to := x.cluster.Nodes[0]
	if to == from {
		to = x.cluster.Nodes[1]
	}
	old := nodeOf(t, x.Schedule, p)
	for _, n := range nodes(t, x.Schedule) {
		n.TakeNew()
	}
	before := masters(t, x.Schedule)
	asked := x.Unchanged()
	if same := masters(t, x.Schedule); asked() || &before[0].Partitions[0] != &same[0].Partitions[0] {
		t.Error("all slots are asked for again though none has moved")
	}
	x.cluster.OpenSlot(p.Slot(), from, to)
	asked = x.Unchanged()
	look := schedule.Look{Within: time.Second, Lease: lease, Every: lease}
	if found, err := old.Sweep(ctx, look); err != nil || !slices.Equal(found.Moving, []keys.Partition{p}) || !asked() {
		t.Errorf("a sweep that misses %s: %v, %v; all slots are asked for again: %v", p, found.Moving, err, asked())
	}
	asked = x.Unchanged()
	if _, err := old.LookHeld(ctx, 0, keys.Namespace{}); err != nil || !asked() {
		t.Errorf("a resume that misses %s: %v; all slots are asked for again: %v", p, err, asked())
	}
	for x.cluster.MoveKeys(p.Slot(), 1, from, to) > 0 {
	}
	x.cluster.CloseSlot(p.Slot(), from, to)
	var node *schedule.Node
	testenv.Eventually(t, time.Minute, func() bool {
		x.rdb.ReloadState(ctx)
		node = nodeOf(t, x.Schedule, p)
		return node != old
	}, "the slot to be known elsewhere")
	for i, m := range masters(t, x.Schedule) {
		was, is := slices.Contains(before[i].Partitions, p), slices.Contains(m.Partitions, p)
		if want := m.Name == to.Addr(); was == is && (was || want) || is != want || before[i].Name != m.Name {
			t.Errorf("%s had the slot: %v, has it: %v; before it was %s", m.Name, was, is, before[i].Name)
		}
	}
	if came := node.TakeNew(); came != 1 {
		t.Errorf("%d partitions came, want 1", came)
	}
	if came := node.TakeNew() + old.TakeNew(); came != 0 {
		t.Errorf("%d partitions came, want no more", came)
	}
	testenv.Eventually(t, time.Minute, func() error {
		firings, err := claimFrom(ctx, node, p, lease)
		if err == nil && (len(firings) != 1 || string(firings[0].Payload) != "p") {
			t.Fatalf("claimed %+v, want the timer that ran out", firings)
		}
		return err
	}, "a claim")
}

// A server that knows no slot with a master has left its cluster, or is in none: it must not count as one without
// timers.
func TestClusterWithoutMasters(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t, 1, true)
	left := cluster.Nodes[1]
	if err := left.Client().Do(t.Context(), "CLUSTER", "RESET", "HARD").Err(); err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{left.Addr()}})
	defer rdb.Close()
	s := schedule.New(rdb, 1000)
	if masters, err := s.Masters(t.Context()); err == nil {
		t.Errorf("masters %+v, want an error", masters)
	}
	if all, err := s.Nodes(t.Context()); err == nil {
		t.Errorf("nodes %+v, want an error", all)
	}
	if err := list(t, s, keys.Namespace{}, func(query.Timer) bool { return true }); err == nil {
		t.Error("no timers are listed, want an error")
	}
}
