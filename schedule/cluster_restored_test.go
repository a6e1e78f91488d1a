package schedule_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// restoredCluster is a cluster with timers that are due, in slots of two masters.
type restoredCluster struct {
	*clusterIndex
	old, other *schedule.Node // old has the older data
	due, later []string       // on old: due, and due in an hour
	others     []string       // on the other one: due
}

// tagOn returns a hash tag of one of a master's slots, except its first.
func (x *clusterIndex) tagOn(n *schedule.Node) string {
	x.t.Helper()
	for i := range 10_000 {
		tag := fmt.Sprintf("{t%d}", i)
		if p := x.Partition(tag); n.Owns(p) && p != n.Master().Partitions[0] {
			return tag
		}
	}
	x.t.Fatal("no hash tag")
	return ""
}

// newRestoredCluster returns a cluster after a timerd has claimed from it and sent it heartbeats.
func newRestoredCluster(t *testing.T) *restoredCluster {
	t.Helper()
	x := &restoredCluster{clusterIndex: newClusterIndex(t)}
	all := nodes(t, x.Schedule)
	x.old, x.other = all[0], all[1]
	for _, n := range all[:2] {
		tag := x.tagOn(n)
		x.claimedFrom(n, x.Partition(tag))
		x.sees(n)
		for i := range 3 {
			key := fmt.Sprintf("a:b:c:%s%d", tag, i)
			x.set(key, "p", 5*time.Millisecond)
			if n == x.other {
				x.others = append(x.others, key)
				continue
			}
			x.due = append(x.due, key)
			x.later = append(x.later, key+"later")
			x.set(key+"later", "p", time.Hour)
		}
	}
	awaitGone(t, x.rdb, append(x.others, x.due...)...)
	return x
}

// awaitGone waits until keys have run out.
func awaitGone(t *testing.T, rdb *redis.ClusterClient, names ...string) {
	t.Helper()
	testenv.Eventually(t, time.Minute, func() error {
		for _, name := range names {
			if n, err := rdb.Exists(t.Context(), name).Result(); err != nil || n > 0 {
				return fmt.Errorf("%s exists: %d, %w", name, n, err)
			}
		}
		return nil
	}, "the keys to run out")
}

// sees has a timerd send a heartbeat to a server.
func (x *restoredCluster) sees(n *schedule.Node) {
	x.t.Helper()
	if _, err := n.Hearing(x.t.Context(), schedule.Self{Instance: "a", Listens: "all"}, true, time.Minute); err != nil {
		x.t.Fatal(err)
	}
}

// claimedFrom claims from a partition, and returns the firings.
func (x *restoredCluster) claimedFrom(n *schedule.Node, p keys.Partition) []schedule.Firing {
	x.t.Helper()
	c := n.Claim(x.t.Context(), []schedule.ClaimRequest{{Partition: p}}, lease)[0]
	if c.Err != nil || len(c.Corrupt) > 0 {
		x.t.Fatalf("claim: %v, %v", c.Err, c.Corrupt)
	}
	return c.Firings
}

// fires claims the timers of one of the masters, and expects want of them.
func (x *restoredCluster) fires(n *schedule.Node, names []string, want int) []schedule.Firing {
	x.t.Helper()
	all := x.claimedFrom(n, x.Partition(names[0]))
	if len(all) != want {
		x.t.Fatalf("%d of %v fire, want %d", len(all), names, want)
	}
	return all
}

// homes returns the names of the data of a master's first, middle and last partition.
func homes(n *schedule.Node) []string {
	all := n.Master().Partitions
	return []string{all[0].Data(), all[len(all)/2].Data(), all[len(all)-1].Data()}
}

// isRestored marks the old server's data as another server's, with a last heartbeat of the given age.
func (x *restoredCluster) isRestored(age time.Duration) {
	x.t.Helper()
	now, err := x.old.Server().Time(x.t.Context()).Result()
	for i, name := range homes(x.old) {
		if err == nil {
			err = x.rdb.HSet(x.t.Context(), name, ":s:", now.Add(-age).UnixMilli()).Err()
		}
		if err == nil && i == 0 {
			err = x.rdb.HSet(x.t.Context(), name, ":i:", "another").Err()
		}
	}
	if err != nil {
		x.t.Fatal(err)
	}
}

// waiting returns the wait, and checks the number of its timers.
func (x *clusterIndex) waiting(want int) schedule.Wait {
	x.t.Helper()
	all, err := x.Waits(x.t.Context())
	if err != nil || len(all) != min(want, 1) || want > 0 && all[0].Timers != int64(want) {
		x.t.Fatalf("waiting: %+v, %v; want %d", all, err, want)
	}
	if want == 0 {
		return schedule.Wait{}
	}
	return all[0]
}

// A timerd that asks for the waits all the time reads the partitions once, and again after a timerd has begun a wait,
// or it has ended one.
func TestWaitsLatelyKeepsALook(t *testing.T) {
	t.Parallel()
	x := newRestoredCluster(t)
	other := schedule.New(x.rdb, 1000)
	lately := func(s *schedule.Schedule, timers int64, looks bool) (wait schedule.Wait) {
		t.Helper()
		before := callsOn(t, x.old)
		all, err := s.WaitsLately(t.Context())
		for _, wait = range all {
			timers -= wait.Timers
		}
		if err != nil || timers != 0 {
			t.Fatalf("%+v, %v", all, err)
		}
		if looked := callsOn(t, x.old) > before; looked != looks {
			t.Errorf("it has looked: %v, want %v", looked, looks)
		}
		return wait
	}
	for _, looks := range []bool{true, false} {
		lately(x.Schedule, 0, looks)
		lately(other, 0, looks)
	}
	x.isRestored(time.Hour)
	lately(other, 0, true)
	x.fires(x.old, x.due, 0)
	waiting := int64(len(x.due))
	lately(other, waiting, true)
	wait := lately(x.Schedule, waiting, true)
	if err := x.EndWait(t.Context(), wait); err != nil {
		t.Fatal(err)
	}
	for _, looks := range []bool{true, false} {
		lately(x.Schedule, 0, looks)
	}
}

// moves takes a partition to another server, and returns the node there once this schedule knows it.
func (x *clusterIndex) moves(p keys.Partition, to *schedule.Node) (at *schedule.Node) {
	x.t.Helper()
	from := x.cluster.Master(p.Slot())
	for _, server := range x.cluster.Nodes {
		if server.Addr() == to.Name() {
			x.cluster.MoveSlots(p.Slot(), p.Slot(), from, server)
		}
	}
	testenv.Eventually(x.t, time.Minute, func() error {
		x.Reload(x.t.Context())
		if at = nodeOf(x.t, x.Schedule, p); at.Name() != to.Name() {
			return fmt.Errorf("the slot is at %s", at.Name())
		}
		return nil
	}, "the slot to move")
	return at
}

// stateIs asks the function library for the state of a timer.
func (x *clusterIndex) stateIs(key, want string) {
	x.t.Helper()
	got, err := x.rdb.FCall(x.t.Context(), "timer_get", []string{key}).Slice()
	if err != nil || !slices.Contains(got, any(want)) {
		x.t.Errorf("%s is %v, %v; want %s", key, got, err, want)
	}
}

// In a cluster only the timers due on the server with older data wait, also where their slot goes. After the wait they
// fire, and the wait does not count as lateness.
func TestRestoredServerOfACluster(t *testing.T) {
	t.Parallel()
	x := newRestoredCluster(t)
	x.isRestored(time.Hour)
	x.fires(x.other, x.others, 3)
	x.fires(x.old, x.due, 0)
	w := x.waiting(len(x.due))
	if age := w.Until.Time().Sub(w.Last.Time()); age < time.Hour || w.Ahead {
		t.Errorf("waiting: %+v, after %v", w, age)
	}
	x.stateIs(x.due[0], "owed")
	x.stateIs(x.later[0], "pending")
	key, err1 := keys.Parse(x.due[1])
	timers, err2 := query.Inspect(t.Context(), x.Schedule, key, 0)
	if err := errors.Join(err1, err2); err != nil || len(timers.Timers) != 1 ||
		timers.Timers[0].State != query.StateOwed {
		t.Errorf("%+v, %v", timers, err)
	}
	x.sees(x.old)
	another := schedule.New(x.rdb, 1000) // a timerd that starts
	if got, err := claimFrom(t.Context(), nodeOf(t, another, x.Partition(x.due[0])), x.Partition(x.due[0]),
		lease); err != nil || len(got) > 0 {
		t.Errorf("another timerd: %v, %v", got, err)
	}

	at := x.moves(x.Partition(x.due[0]), x.other)
	x.fires(at, x.due, 0)
	x.stateIs(x.due[0], "owed")
	if err := x.rdb.FCall(t.Context(), "timer_cancel", []string{x.due[0]}).Err(); err != nil {
		t.Fatal(err)
	}
	if err := x.EndWait(t.Context(), x.waiting(len(x.due)-1)); err != nil {
		t.Fatal(err)
	}
	x.waiting(0)
	l, err := x.Holds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := schedule.Hold{Resume: &schedule.Resume{Kind: schedule.ResumeNow, At: l.Now}}
	if _, err := l.Release(t.Context(), &all, x.Partition(x.due[0]), schedule.HeldAt{}, &schedule.Draw{}); err != nil {
		t.Fatal(err)
	}
	for _, f := range x.fires(at, x.due, len(x.due)-1) {
		if f.Waited <= 0 || f.MayBeStored {
			t.Errorf("%s waited %v, may be stored: %t", f.Key, f.Waited, f.MayBeStored)
		}
	}
}

// A server of a cluster with a young last heartbeat lets timers fire at once, as a single one does.
func TestFailoverInAClusterIsForgiven(t *testing.T) {
	t.Parallel()
	x := newRestoredCluster(t)
	x.SetDuplicates(4 * time.Hour)
	x.isRestored(time.Hour)
	fired := x.fires(x.old, x.due, len(x.due))
	for _, f := range fired {
		if !f.MayBeStored || f.Waited != 0 {
			t.Errorf("%s may be stored: %t, waited %v", f.Key, f.MayBeStored, f.Waited)
		}
	}
	x.waiting(0)
	p := x.Partition(x.due[0])
	look := func() []string {
		t.Helper()
		c := x.old.ClaimInFull(t.Context(), schedule.ClaimRequest{Partition: p}, lease)
		fields, err := x.rdb.HKeys(t.Context(), p.Data()).Result()
		if err := errors.Join(c.Err, err); err != nil {
			t.Fatal(err)
		}
		return fields
	}
	if fields := look(); slices.Contains(fields, ":i:") {
		t.Errorf("still marked: %v", fields)
	}

	// Once it has no timers, nothing of it is left.
	for _, key := range x.later {
		if err := x.rdb.FCall(t.Context(), "timer_cancel", []string{key}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, fired...)); err != nil {
		t.Fatal(err)
	}
	if fields := look(); len(fields) > 0 {
		t.Errorf("left: %v", fields)
	}
}

// A server that only lost its first slot to another one has the same data. A timerd that has seen it before knows that,
// and the other server's data stay compared.
func TestFirstSlotMoves(t *testing.T) {
	t.Parallel()
	x := newRestoredCluster(t)
	first := x.old.Master().Partitions[0]
	now, err := x.old.Server().Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	// An old sign, in the data of an earlier first slot: it would be taken for the last heartbeat.
	p := x.Partition(x.due[0])
	old := now.Add(-time.Hour).UnixMilli()
	if err := x.rdb.HSet(t.Context(), p.Data(), ":i:", "another", ":s:", old).Err(); err != nil {
		t.Fatal(err)
	}
	x.moves(first, x.other)
	x.fires(x.old, x.due, len(x.due))
	x.fires(nodeOf(t, x.Schedule, x.Partition(x.others[0])), x.others, len(x.others))
	x.waiting(0)
	if fields, err := x.rdb.HKeys(t.Context(), p.Data()).Result(); err != nil || slices.Contains(fields, ":s:") {
		t.Errorf("the old sign is still there: %v, %v", fields, err)
	}
}

// Where somebody has written to the data of a server's first slot, the timers in its other slots fire.
func TestFirstSlotIsOverwritten(t *testing.T) {
	t.Parallel()
	x := newRestoredCluster(t)
	if err := x.rdb.Set(t.Context(), homes(x.old)[0], "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	s := schedule.New(x.rdb, 1000) // a timerd that starts
	s.SetDuplicates(4 * time.Hour)
	x.sees(nodeOf(t, s, x.Partition(x.due[0])))
	x.fires(x.old, x.due, len(x.due))
}

// Slots mostly move from one end, so a timerd's sign in the last slot shows the age of the data, too.
func TestRestoredServerWithoutItsFirstSlots(t *testing.T) {
	t.Parallel()
	x := newRestoredCluster(t)
	x.isRestored(time.Hour)
	for _, name := range homes(x.old)[:2] {
		if err := x.rdb.HDel(t.Context(), name, ":i:", ":s:").Err(); err != nil {
			t.Fatal(err)
		}
	}
	p := x.Partition(x.due[0])
	got, err := claimFrom(t.Context(), nodeOf(t, schedule.New(x.rdb, 1000), p), p, lease) // by a timerd that starts
	if err != nil || len(got) > 0 {
		t.Errorf("claimed %v, %v", got, err)
	}
	x.waiting(len(x.due))
}

// While the first slot of a server is on its way to another one, the timers in its other slots fire.
func TestFirstSlotIsOpen(t *testing.T) {
	t.Parallel()
	x := newRestoredCluster(t)
	slot := x.old.Master().Partitions[0].Slot()
	from, to := x.cluster.Master(slot), x.cluster.Nodes[0]
	if to == from {
		to = x.cluster.Nodes[1]
	}
	x.cluster.OpenSlot(slot, from, to)
	for x.cluster.MoveKeys(slot, 100, from, to) > 0 {
	}
	s := schedule.New(x.rdb, 1000) // a timerd that starts
	s.SetDuplicates(4 * time.Hour)
	p := x.Partition(x.due[0])
	if got, err := claimFrom(t.Context(), nodeOf(t, s, p), p, lease); err != nil || len(got) != len(x.due) {
		t.Errorf("claimed %v, %v", got, err)
	}
}
