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

// isRestored has the data be those of another server, with the last heartbeat some time ago.
func (x *index) isRestored(age time.Duration) {
	x.t.Helper()
	x.do("HSET", keys.Single.Data(), ":i:", "another", ":s:", x.redisNow()-age.Milliseconds())
}

// waiting returns the wait of the timers, which there must be or not.
func (x *index) waiting(want bool) schedule.Wait {
	x.t.Helper()
	all, err := x.Waits(x.t.Context())
	if err != nil || len(all) > 1 || (len(all) == 1) != want {
		x.t.Fatalf("waiting: %+v, %v; want %t", all, err, want)
	}
	if !want {
		return schedule.Wait{}
	}
	return all[0]
}

// free ends the wait, and releases what no hold covers, as timerd does. It returns how many were released.
func (x *index) free(w schedule.Wait) int {
	x.t.Helper()
	if err := x.EndWait(x.t.Context(), w); err != nil {
		x.t.Fatal(err)
	}
	x.waiting(false)
	l := x.list()
	all := schedule.Hold{Resume: &schedule.Resume{Kind: schedule.ResumeNow, At: l.Now}}
	return x.release(l, &all, &schedule.Draw{})
}

// Timers that were due when a restored Redis was found wait, in whatever state they are; later ones fire. After the
// wait all fire, and it does not count for their lateness.
func TestRestoredTimersWait(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.beat(schedule.Self{Instance: "a"})
	const claimed, given, owed, freed, due, later = "app1:b:c:claimed", "app1:b:c:given", "app1:b:c:owed",
		"app1:b:c:freed", "app1:b:c:due", "app1:b:c:later"
	x.becomeDue(claimed)
	dead := x.claims(claimed + " deadline payload of " + claimed)[0] // by a timerd that dies
	x.becomeDue(given)
	x.giveBack(true)
	x.do("ZADD", keys.Single.Firing(), "XX", x.redisNow(), dead.Ref) // its lease is over
	x.becomeDue(owed, freed)
	x.observe(expired(owed), expired(freed))
	x.do("ZADD", keys.Single.Firing(), "0.25", fmt.Sprintf("%d::%s", x.due(freed), freed)) // by a resume
	x.becomeDue(due)
	x.do("FCALL", "timer_set", 1, later, "p", "PX", 3600_000)
	x.isRestored(time.Hour)

	// Of the two that may have been published the publisher looks for the events.
	for _, f := range x.claimOf(lease, 2) {
		if !f.MayBeStored || f.Key.ID != "claimed" && f.Key.ID != "given" {
			t.Errorf("%+v", f)
		}
	}
	waits := x.waiting(true)
	if waits.Timers != 3 || waits.Last.Time().After(waits.Until.Time().Add(-time.Hour+time.Minute)) {
		t.Errorf("waiting: %+v", waits)
	}
	for _, name := range []string{owed, freed, due} {
		x.stateIs(name, "owed payload of "+name)
	}
	x.stateIs(later, "pending p")
	x.beat(schedule.Self{Instance: "a"})
	if w := x.waiting(true); !w.Same(waits) || w.Timers != waits.Timers {
		t.Errorf("after a heartbeat %+v, before %+v", w, waits)
	}
	x.becomeDue("app1:b:c:new")
	x.fires("app1:b:c:new deadline payload of app1:b:c:new")
	x.do("FCALL", "timer_cancel", 1, owed)
	if w := x.waiting(true); w.Timers != 2 {
		t.Errorf("waiting after a cancellation: %+v", w)
	}

	// A resume of everything releases none of them, and stays until they are free.
	x.hold("*")
	l, resumed := x.resume("*", schedule.Resume{Kind: schedule.ResumeNow})
	r, err := l.Release(t.Context(), resumed, keys.Single, schedule.HeldAt{}, &schedule.Draw{})
	if err != nil || r.Count != 0 || r.Kept != 2 || !r.Last {
		t.Errorf("a resume: %+v, %v", r, err)
	}
	if err := l.Remove(t.Context(), resumed.Namespace); err != nil {
		t.Fatal(err)
	}
	x.claims()
	if n := x.free(waits); n != 2 {
		t.Errorf("%d released, want 2", n)
	}
	for _, f := range x.claimOf(lease, 2) {
		if f.Waited <= 0 || f.MayBeStored || f.Key.ID != "freed" && f.Key.ID != "due" {
			t.Errorf("%s waited %v, may be stored: %t", f.Key, f.Waited, f.MayBeStored)
		}
	}
}

// A server with a young last heartbeat lets timers fire at once: JetStream drops second events. Timers whose events may
// be stored are told apart.
func TestRestartIsForgiven(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.SetDuplicates(4 * time.Hour)
	x.beat(schedule.Self{Instance: "a"})
	x.becomeDue("app1:b:c:old")
	old := x.redisNow()
	x.awaitClock(old)
	x.becomeDue("app1:b:c:1", "app1:b:c:2")
	x.do("HSET", keys.Single.Data(), ":i:", "another", ":s:", old+lease.Milliseconds())
	for _, f := range x.claimOf(lease, 3) {
		if f.MayBeStored != (f.Key.ID != "old") || f.Waited != 0 {
			t.Errorf("%s may be stored: %t, waited %v", f.Key, f.MayBeStored, f.Waited)
		}
	}
	x.waiting(false)
	x.becomeDue("app1:b:c:3")
	x.claims("app1:b:c:3 deadline payload of app1:b:c:3")
	if is, _ := x.do("HGET", keys.Single.Data(), ":i:").(string); is == "another" || strings.HasSuffix(is, "*") {
		t.Errorf("the data are of %q", is)
	}
}

// claimOf claims as many firings as wanted.
func (x *index) claimOf(lease time.Duration, want int) []schedule.Firing {
	x.t.Helper()
	all := x.claimFor(lease).Firings
	if len(all) != want {
		x.t.Fatalf("%d firings, want %d", len(all), want)
	}
	return all
}

// After a second restart while timers wait, all due since wait, too, also if it would be forgiven by itself: the
// comparison may have ended timers that are back. The earliest last heartbeat counts.
func TestRestoredAgain(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.beat(schedule.Self{Instance: "a"})
	x.becomeDue("app1:b:c:1")
	x.isRestored(2 * time.Hour)
	x.claims()
	first := x.waiting(true)
	x.becomeDue("app1:b:c:2")
	x.isRestored(time.Hour)
	x.claims()
	second := x.waiting(true)
	if second.Last != first.Last || second.Until <= first.Until || second.Timers != 2 {
		t.Errorf("waiting: %+v, before %+v", second, first)
	}
	if err := x.EndWait(t.Context(), first); err != nil || second.Same(first) {
		t.Fatal(err)
	}
	x.waiting(true) // not that one
	x.SetDuplicates(4 * time.Hour)
	x.becomeDue("app1:b:c:3")
	x.isRestored(time.Hour)
	x.claims()
	if third := x.waiting(true); third.Last != first.Last || third.Until <= second.Until || third.Timers != 3 {
		t.Errorf("waiting: %+v, before %+v", third, second)
	}
}

// A heartbeat of a version that did not note it in the data counts, and one from far ahead is not young.
func TestRestoredByOtherSigns(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*index){
		"members": func(x *index) {
			x.do("HDEL", keys.Single.Data(), ":s:")
			x.age("a", time.Hour)
		},
		"ahead": func(x *index) {
			x.do("HSET", keys.Single.Data(), ":s:", x.redisNow()+time.Hour.Milliseconds())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			x.SetDuplicates(time.Minute)
			x.beat(schedule.Self{Instance: "a"})
			x.becomeDue(k)
			x.do("HSET", keys.Single.Data(), ":i:", "another")
			prepare(x)
			x.claims()
			x.waiting(true)
		})
	}
}

// Without a heartbeat no timerd has ever run on the data, so nothing can have fired.
func TestDataWithoutAHeartbeatDoNotWait(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.becomeDue(k)
	x.do("HSET", keys.Single.Data(), ":i:", "another")
	x.claims(k + " deadline payload of " + k)
	x.waiting(false)
}

// A heartbeat finds a restored Redis, too, before it hides how old the data are. So does a step that runs as a script.
func TestRestoredIsFoundByEachStep(t *testing.T) {
	t.Parallel()
	for name, find := range map[string]func(*index){
		"a heartbeat": func(x *index) { x.beat(schedule.Self{Instance: "b"}) },
		"a script": func(x *index) {
			x.do("ACL", "SETUSER", "able", "on", "nopass", "~*", "&*", "+@all", "-function|load", "-fcall")
			options := *x.rdb.Options()
			options.Username, options.Password = "able", "any"
			able := redis.NewClient(&options)
			x.t.Cleanup(func() { _ = able.Close() })
			y := &index{Schedule: schedule.New(able, 999), t: x.t, rdb: x.rdb, dues: x.dues}
			y.Node = onlyNode(x.t, y.Schedule)
			y.claims()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			x.beat(schedule.Self{Instance: "a"})
			x.becomeDue(k)
			x.isRestored(time.Hour)
			find(x)
			x.waiting(true)
			x.claims()
		})
	}
}

// restoredCluster is a cluster with timers that are due, in slots of two masters.
type restoredCluster struct {
	*clusterIndex
	old, other *schedule.Node // old is the one whose data are older
	due, later []string       // on old: due, and due in an hour
	others     []string       // on the other one: due
}

// tagOn returns a hash tag of one of a master's slots, but its first.
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

// newRestoredCluster returns one that a timerd has claimed from, and been seen by.
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

// fires claims the timers of one of the masters, which are so many.
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

// isRestored has the data of the old server be those of another one, with the last heartbeat some time ago.
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

// waiting returns what waits, in so many timers.
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

// Of a cluster, timers wait that were due on the server with older data, and those alone. They wait also where their
// slot goes. After the wait they fire, and it does not count for their lateness.
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
// and the other server is none the wiser.
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

// Slots mostly move from one end. So the sign of a timerd in the last slot tells how old the data are, too.
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
