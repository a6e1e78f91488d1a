package schedule_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// audit audits the index once.
func (x *index) audit() schedule.Observed {
	x.t.Helper()
	return auditOf(x.t, x.Node)
}

func auditOf(t testing.TB, n *schedule.Node) schedule.Observed {
	t.Helper()
	audit, err := n.BeginAudit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all, err := audit.Partitions(t.Context(), []keys.Partition{keys.Single}, 2, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	audit.Complete()
	return all
}

// sameCounts reports whether two audits did the same to timers.
func sameCounts(a, b schedule.Observed) bool {
	return a.Rescheduled == b.Rescheduled && a.Cancelled == b.Cancelled && a.Kept == b.Kept
}

// setFor sets timers of an app, named and due in a minute or later.
func (x *index) setFor(app string, names ...string) {
	x.t.Helper()
	for _, name := range names {
		x.do("FCALL", "timer_set", 1, app+":b:c:"+name, name, "PX", 60000)
	}
}

// pending returns the number of timers of an app in the index.
func (x *index) pendingOf(app string) int {
	x.t.Helper()
	all, err := x.rdb.ZRange(x.t.Context(), keys.Single.Due(), 0, -1).Result()
	if err != nil {
		x.t.Fatal(err)
	}
	n := 0
	for _, member := range all {
		if strings.HasPrefix(member, app+":") {
			n++
		}
	}
	return n
}

func TestAudit(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.audit() // from now on, it is known what happens to keys
	for _, name := range []string{"kept", "deleted", "persisted", "moved", "evicted"} {
		x.do("SET", "a:b:c:"+name, name, "PX", 60000)
		x.observe(touched("a:b:c:" + name))
	}
	x.do("DEL", "a:b:c:deleted", "a:b:c:evicted")
	x.observe(evicted("a:b:c:evicted"))
	x.do("PERSIST", "a:b:c:persisted")
	x.do("PEXPIRE", "a:b:c:moved", 90000)
	if seen := x.audit(); seen.Cancelled != 2 || seen.Rescheduled != 1 || seen.Kept != 0 {
		t.Errorf("%+v, want the deleted and the persisted one cancelled and the moved one rescheduled", seen)
	}
	if n := x.pendingOf("a"); n != 3 {
		t.Errorf("%d timers left, want 3", n)
	}
}

// If keys vanish for another reason, neither this audit nor the next one takes them for deleted. But the second audit
// finds keys that were deleted after the first.
func TestAbsenceProvesNothing(t *testing.T) {
	t.Parallel()
	for name, vanish := range map[string]func(x *index){
		"evicted, then the policy was mended": func(x *index) {
			evictAll(x)
		},
		"the clock was ahead, and is not any more": func(x *index) {
			at := time.Now()
			x.ReadClock(schedule.Millis(x.redisNow()).Time().Add(10*time.Minute), at, at)
			x.do("DEL", "a:b:c:1", "a:b:c:2")
		},
		"the clock was unread for long": func(x *index) {
			x.do("DEL", "a:b:c:1", "a:b:c:2")
			x.ReadClock(schedule.Millis(x.redisNow()).Time(), time.Now(), time.Now().Add(10*time.Second))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			x.audit()
			x.setFor("a", "1", "2")
			vanish(x)
			if n := x.do("EXISTS", "a:b:c:1", "a:b:c:2"); n != int64(0) {
				t.Fatalf("%v keys are left", n)
			}
			for range 2 {
				if seen := x.audit(); seen.Cancelled != 0 {
					t.Errorf("%+v, want nothing cancelled", seen)
				}
			}
			if n := x.pendingOf("a"); n != 2 {
				t.Errorf("%d timers left, want 2", n)
			}
			x.do("FCALL", "timer_set", 1, "b:b:c:1", "p", "PX", 3600_000)
			x.do("DEL", "b:b:c:1")
			if seen := x.audit(); seen.Cancelled != 1 {
				t.Errorf("%+v, want the one that was deleted since cancelled", seen)
			}
			if reply := x.do("FCALL", "timer_set", 1, "a:b:c:1", "p", "PX", 60000, "NX"); reply != nil {
				t.Errorf("NX set a timer beside one whose key is gone for unknown reasons: %v", reply)
			}
			x.do("FCALL", "timer_set", 1, "a:b:c:1", "p", "PX", 60000) // now it has its key again
			x.do("DEL", "a:b:c:1")
			x.observe(gone("a:b:c:1"), gone("a:b:c:2"))
			if n := x.pendingOf("a"); n != 0 {
				t.Errorf("%d timers left after their deletion was heard, want none", n)
			}
		})
	}
}

// Once the counts were reset, they prove nothing any more, until the server starts again.
func TestAbsenceAfterAReset(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	rdb := server.Client()
	x := newIndexFor(t, rdb, rdb, 1000)
	x.audit()
	x.setFor("a", "1", "2")
	evictAll(x)
	x.do("CONFIG", "RESETSTAT")
	if seen := x.audit(); seen.Cancelled != 0 || seen.Kept != 2 {
		t.Errorf("%+v, want both kept", seen)
	}
	x.setFor("b", "1", "2")
	x.do("DEL", "b:b:c:1")
	if seen := x.audit(); seen.Cancelled != 0 || seen.Kept != 1 {
		t.Errorf("%+v, want one kept", seen)
	}
	server.Restart()
	x.audit()
	x.do("DEL", "b:b:c:2")
	if seen := x.audit(); seen.Cancelled != 1 {
		t.Errorf("%+v, want one cancelled", seen)
	}
}

// evictAll makes the server evict every key with a TTL, and restores the policy.
func evictAll(x *index) {
	x.t.Helper()
	x.do("CONFIG", "SET", "maxmemory-policy", "volatile-random", "maxmemory", "1")
	x.refuses("OOM", "SET", "foreign", "v")
	testenv.Eventually(x.t, time.Minute, func() bool {
		return x.rdb.Do(x.t.Context(), "SET", "foreign", "v").Err() != nil &&
			x.do("EXISTS", "a:b:c:1", "a:b:c:2") == int64(0)
	}, "the keys to be evicted")
	x.do("CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction")
}

// After another run, on another server, or with keys that ran out during loading, the fate of a key is unknown.
func TestAbsenceAfterARestart(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	rdb := server.Client()
	x := newIndexFor(t, rdb, rdb, 1000)
	x.audit()
	x.setFor("a", "1", "2")
	x.do("DEL", "a:b:c:1")
	server.Restart()
	if seen := x.audit(); seen.Cancelled != 0 || seen.Kept != 1 {
		t.Errorf("%+v, want one kept", seen)
	}
	x.do("DEL", "a:b:c:2")
	if seen := x.audit(); seen.Cancelled != 1 || seen.Kept != 0 {
		t.Errorf("%+v, want one cancelled", seen)
	}
}

// A timerd that starts knows by the mark of an earlier one whether anything but deletions went unnoticed.
func TestMarks(t *testing.T) {
	t.Parallel()
	const canary = "timerd:canary:{t}x-0"
	for name, test := range map[string]struct {
		meanwhile func(x *index)
		deleted   bool // whether the absence of a key proves its deletion
	}{
		"nothing ran out": {func(*index) {}, true},
		"the canary has run out": {func(x *index) {
			runOut(x, canary)
		}, true},
		"a key ran out":     {func(x *index) { runOut(x, "foreign") }, false},
		"a key was evicted": {evictAll, false},
		"the mark is gone": {func(x *index) {
			for _, key := range x.do("KEYS", "timerd:mark:*").([]any) {
				x.do("DEL", key)
			}
		}, false},
		"the mark is of another version": {func(x *index) {
			for _, key := range x.do("KEYS", "timerd:mark:*").([]any) {
				x.do("SET", key, "v2 ...")
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			x.audit()
			info, err := x.rdb.Info(t.Context(), "server", "stats").Result()
			if err != nil {
				t.Fatal(err)
			}
			x.do("SET", canary, "", "PX", 600_000)
			if err := x.Mark(t.Context(), info, canary); err != nil {
				t.Fatal(err)
			}
			x.setFor("a", "1", "2")
			test.meanwhile(x)
			x.do("DEL", "a:b:c:1", "a:b:c:2")
			next := onlyNode(t, schedule.New(x.rdb, 1000))
			if err := next.StartHearing(t.Context()); err != nil {
				t.Fatal(err)
			}
			want := schedule.Observed{Kept: 2}
			if test.deleted {
				want = schedule.Observed{Cancelled: 2}
			}
			if seen := auditOf(t, next); !sameCounts(seen, want) {
				t.Errorf("%+v, want %+v", seen, want)
			}
		})
	}
}

// An overdue canary that Redis has not removed yet stands for no other key that ran out.
func TestMarkOfAnOverdueCanary(t *testing.T) {
	t.Parallel()
	const canary = "timerd:canary:{t}x-0"
	x := newIndex(t, devserver.Directive("enable-debug-command", "local"))
	x.do("DEBUG", "SET-ACTIVE-EXPIRE", "0")
	x.audit()
	info, err := x.rdb.Info(t.Context(), "server", "stats").Result()
	if err != nil {
		t.Fatal(err)
	}
	x.do("SET", canary, "", "PX", 1)
	if err := x.Mark(t.Context(), info, canary); err != nil {
		t.Fatal(err)
	}
	x.setFor("a", "1")
	runOut(x, "foreign")
	x.awaitExpiry(canary)
	x.do("DEL", "a:b:c:1")
	next := onlyNode(t, schedule.New(x.rdb, 1000))
	if err := next.StartHearing(t.Context()); err != nil {
		t.Fatal(err)
	}
	if seen, want := auditOf(t, next), (schedule.Observed{Kept: 1}); !sameCounts(seen, want) {
		t.Errorf("%+v, want %+v", seen, want)
	}
}

// runOut makes Redis notice that a key has run out.
func runOut(x *index, key string) {
	x.t.Helper()
	x.do("SET", key, "v", "PX", 1)
	testenv.Eventually(x.t, time.Minute, func() bool { return x.do("EXISTS", key) == int64(0) }, key+" to run out")
}

// With payloads of the largest size, an audit takes several calls for a page, and reaches each timer.
func TestAuditOfLargeAbsent(t *testing.T) {
	t.Parallel()
	rdb := servers.client(t)
	x := newIndexFor(t, rdb, rdb, 256<<10)
	payload := strings.Repeat("x", 250<<10)
	for i := range 20 {
		x.do("FCALL", "timer_set", 1, fmt.Sprint("a:b:c:", i), payload, "PX", 60000)
		x.do("DEL", fmt.Sprint("a:b:c:", i))
	}
	for i, want := range []schedule.Observed{{Kept: 20}, {}} {
		audit, err := x.BeginAudit(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen, err := audit.Partitions(t.Context(), []keys.Partition{keys.Single}, 100, 0, nil)
		if err != nil || !sameCounts(seen, want) {
			t.Errorf("round %d: %+v, %v; want %+v", i, seen, err, want)
		}
	}
}
