package schedule_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// heads sweeps, and returns the first due time of each reported partition.
func heads(t *testing.T, n *schedule.Node, l schedule.Look) map[keys.Partition]schedule.Millis {
	t.Helper()
	found, err := n.Sweep(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	due := map[keys.Partition]schedule.Millis{}
	for _, h := range found.Heads {
		if first, ok := due[h.Partition]; !ok || h.Due < first {
			due[h.Partition] = h.Due
		}
	}
	return due
}

// slowly is a look for which no partition has its turn again.
func slowly() schedule.Look {
	return schedule.Look{Within: time.Second, Lease: time.Second, Every: time.Hour}
}

// A sweep reports the timers set by timer_set since the last one without a look at the slots, and looks everywhere if
// the library cannot tell.
func TestClusterSweepsTellWhatWasSet(t *testing.T) {
	t.Parallel()
	x := newClusterIndex(t)
	ctx := t.Context()
	const key, other = "a:b:c:{x}1", "a:b:c:{x}2"
	p := x.Partition(key)
	one, two := nodeOf(t, x.Schedule, p), nodeOf(t, schedule.New(x.rdb, 1000), p)
	tells := func(what string, is bool) {
		t.Helper()
		for i, n := range []*schedule.Node{one, two} {
			if due, ok := heads(t, n, slowly())[p]; ok != is {
				t.Errorf("timerd %d, %s: is told of something that is due at %d: %t", i, what, due, ok)
			}
		}
	}
	tells("at first", false)
	x.set(key, "p", time.Minute)
	tells("set", true)
	tells("once", false)
	x.set(other, "p", 2*time.Minute)
	tells("later than the known time", false)
	x.set(other, "p", 30*time.Second)
	tells("earlier", true)
	x.set(other, "p", time.Hour)
	tells("far off", false)

	// A command moves a timer.
	due, err := x.rdb.ZScore(ctx, p.Due(), other).Result()
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := keys.Parse(other)
	if err != nil {
		t.Fatal(err)
	}
	moved := schedule.Move{Which: schedule.Which{Key: parsed, Due: schedule.Millis(due).Time()},
		To: time.Now().Add(time.Minute)}
	if results, err := x.Move(ctx, []schedule.Move{moved}); err != nil || results[0].Outcome != schedule.MoveDone {
		t.Fatalf("moved: %+v, %v", results, err)
	}
	tells("moved", true)

	// The library has not heard of a retry set by a timerd; a sweep that looks everywhere finds it.
	server := one.Server()
	retried := schedule.Retry{EventID: "1", Key: parsed, Due: schedule.MillisOf(time.Now().Add(time.Second)),
		Attempt: 2}
	if _, _, err := x.Retry(ctx, retried); err != nil {
		t.Fatal(err)
	}
	tells("a retry", false)
	library, err := server.FunctionDump(ctx).Result()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(server.FunctionFlush(ctx).Err(), server.FunctionRestore(ctx, library).Err()); err != nil {
		t.Fatal(err)
	}
	tells("another library", true)
	tells("that library again", false)
	if err := server.FunctionFlush(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	tells("no library", true)
	tells("still no library", true)
}

// A master that was a replica for a while looks everywhere, because its library noted nothing meanwhile.
func TestClusterMasterAgain(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t, 3, true, devserver.Directive("cluster-node-timeout", "20000"))
	x := &clusterIndex{Schedule: schedule.New(cluster.Client(), 1000), t: t, cluster: cluster, rdb: cluster.Client()}
	load(t, x.Schedule)
	const key = "a:b:c:1"
	p := x.Partition(key)
	n := nodeOf(t, x.Schedule, p)
	x.set("a:b:c:{a:b:c:1}other", "p", time.Hour)
	heads(t, n, slowly())
	heads(t, n, slowly())
	master := cluster.Master(keys.Slot(key))
	i := slices.Index(cluster.Nodes, master)
	replica := cluster.Nodes[i+3]
	cluster.Failover(replica)
	testenv.Eventually(t, time.Minute, func() error {
		return cluster.Client().FCall(t.Context(), "timer_set", []string{key}, "p", "PX", 2000).Err()
	}, "the timer to be set on the replica")
	cluster.Failover(master)
	if _, ok := heads(t, n, slowly())[p]; !ok {
		t.Error("the timer set on the replica is not found")
	}
}

// A sweep looks everywhere if more timers were set than the library keeps.
func TestClusterMoreIsSetThanIsKept(t *testing.T) {
	t.Parallel()
	x := newClusterIndex(t)
	ctx := t.Context()
	const key = "a:b:c:{x}1"
	p := x.Partition(key)
	n := nodeOf(t, x.Schedule, p)
	other := ""
	for i := 0; other == "" || !n.Owns(x.Partition(other)) || x.Partition(other) == p; i++ {
		other = fmt.Sprintf("a:b:c:%d", i)
	}
	heads(t, n, slowly())
	x.set(key, "p", 1500*time.Millisecond)
	for i := range 9 {
		_, err := x.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for j := range 1000 { // each is due earlier than the one before
				pipe.FCall(ctx, "timer_set", []string{other}, "p", "PX", 100_000-1000*i-j)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := heads(t, n, slowly())[p]; !ok {
		t.Error("the timer of a dropped note is not found")
	}
	if _, ok := heads(t, n, slowly())[p]; ok {
		t.Error("the next sweep looks everywhere too")
	}
}

// A sweep finds due timers in every slot, and ends of leases in time for the next sweep that looks for them.
func TestClusterSweeps(t *testing.T) {
	t.Parallel()
	x := newClusterIndex(t)
	ctx := t.Context()
	p := x.Partition("a:b:c:due")
	x.set("a:b:c:due", "p", 500*time.Millisecond)
	x.set("a:b:c:later", "p", time.Hour)
	n := nodeOf(t, x.Schedule, p)
	if _, ok := heads(t, n, slowly())[p]; !ok { // the first one looks at all in full
		t.Error("the first sweep does not find the due timer")
	}
	has := func(l schedule.Look) bool {
		_, ok := heads(t, n, l)[p]
		return ok
	}
	if has(slowly()) {
		t.Error("a sweep asks a slot whose turn it is not")
	}
	all := slowly()
	all.All = true
	if !has(all) {
		t.Error("a sweep that asks all slots does not find the due timer")
	}
	testenv.Eventually(t, time.Minute, func() bool {
		firings, err := claimFrom(ctx, n, p, time.Hour)
		return err == nil && len(firings) == 1
	}, "it to be claimed")
	if has(schedule.Look{Within: time.Minute}) || !has(schedule.Look{Within: 2 * time.Hour}) {
		t.Error("a sweep does not find when a lease ends")
	}
	testenv.Eventually(t, time.Minute, func() bool {
		return has(schedule.Look{Within: time.Second, Lease: time.Hour, Every: 100 * time.Millisecond})
	},
		"a sweep that looks a second ahead to find when a lease of an hour ends")
}

// A claim from a slot with a due timer looks for an ended lease if the request says so.
func TestClusterLeaseInABusySlot(t *testing.T) {
	t.Parallel()
	x := newClusterIndex(t)
	const dead, due = "a:b:c:{x}dead", "a:b:c:{x}due"
	p := x.Partition(dead)
	n := nodeOf(t, x.Schedule, p)
	claim := func(want string, request schedule.ClaimRequest, lease time.Duration) {
		t.Helper()
		var got []string
		testenv.Eventually(t, time.Minute, func() bool {
			c := n.Claim(t.Context(), []schedule.ClaimRequest{request}, lease)[0]
			for _, f := range c.Firings {
				got = append(got, f.Key.ID)
			}
			return c.Err == nil && len(got) > 0
		}, "something to be claimed")
		if slices.Sort(got); strings.Join(got, " ") != want {
			t.Errorf("claimed %q, want %q", got, want)
		}
	}
	usual, looking := schedule.ClaimRequest{Partition: p}, schedule.ClaimRequest{Partition: p, Leases: true}
	x.set(dead, "p", time.Millisecond)
	claim("{x}dead", usual, time.Millisecond)
	x.set(due, "p", time.Millisecond)
	testenv.Eventually(t, time.Minute, func() bool {
		at, err := x.rdb.Time(t.Context()).Result()
		score := x.rdb.ZScore(t.Context(), p.Due(), due).Val()
		return err == nil && float64(at.UnixMilli()) > score+1
	}, "it to be due")
	claim("{x}due", usual, time.Hour)
	x.set("a:b:c:{x}next", "p", time.Millisecond)
	testenv.Eventually(t, time.Minute, func() bool {
		return x.rdb.Exists(t.Context(), "a:b:c:{x}next").Val() == 0
	}, "the next to be due")
	claim("{x}dead {x}next", looking, time.Hour)
}

// timer_moved, which anybody may call, notes only the partition of its key's slot.
func TestClusterMovedByAnybody(t *testing.T) {
	t.Parallel()
	x := newClusterIndex(t)
	key := "a:b:c:{x}" + strings.Repeat("y", 1<<20)
	p := x.Partition(key)
	n := nodeOf(t, x.Schedule, p)
	heads(t, n, slowly())
	// it returns nothing
	if err := x.rdb.FCallRO(t.Context(), "timer_moved", []string{key}).Err(); !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	found := heads(t, n, slowly())
	if _, ok := found[p]; !ok || len(found) != 1 {
		t.Errorf("%d partitions are found, want that of the key's slot alone", len(found))
	}
}

// A claim returns the end of the pause of a timer given back in the same partition, which no scan has found yet.
func TestClusterClaimTellsWhenAPauseEnds(t *testing.T) {
	t.Parallel()
	x := newClusterIndex(t)
	const key = "a:b:c:{1}"
	all := nodes(t, x.Schedule)
	n := all[slices.IndexFunc(all, func(n *schedule.Node) bool { return n.Owns(x.Partition(key)) })]
	claim := func() schedule.ClaimResult {
		t.Helper()
		var c schedule.ClaimResult
		testenv.Eventually(t, time.Minute, func() error {
			c = n.Claim(t.Context(),
				[]schedule.ClaimRequest{{Partition: x.Partition(key), Known: schedule.MillisOf(time.Now())}}, lease)[0]
			if c.Err == nil && len(c.Firings) == 0 {
				return errors.New("nothing claimed")
			}
			return c.Err
		}, "a claim")
		return c
	}
	x.set(key, "p", time.Millisecond)
	given := schedule.Outcomes(schedule.OutcomeGivenBack, claim().Firings...)
	given[0].Pause = 30 * time.Second
	if err := x.Release(t.Context(), given); err != nil {
		t.Fatal(err)
	}
	x.set(key+"another", "p", time.Millisecond)
	if c := claim(); c.Full || c.Next == schedule.Nothing || c.Next > schedule.MillisOf(c.At).Add(30*time.Second) {
		t.Errorf("in full: %t, next at %d, want when the pause ends", c.Full, c.Next)
	}
}
