package schedule_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// overview returns the numbers of timers that are pending, owed and firing, and the one that has been owed for longest.
func (x *index) overview() string {
	x.t.Helper()
	seen, err := query.CountTimers(x.t.Context(), x.Node)
	if err != nil {
		x.t.Fatal(err)
	}
	said := fmt.Sprintf("%d %d %d", seen.Pending, seen.Owed, seen.Firing)
	if !seen.OldestDue.IsZero() {
		said += fmt.Sprintf(" %s@%d", seen.Oldest, seen.OldestDue.UnixMilli())
	}
	return said
}

// counted returns an audit's counts by namespace: "name pending owed firing" each.
func (x *index) counted(namespaces string) (said []string) {
	x.t.Helper()
	set, err := keys.ParseNamespaces(namespaces)
	if err != nil {
		x.t.Fatal(err)
	}
	for _, c := range x.auditCounts(set...) {
		said = append(said, fmt.Sprintf("%s %d %d %d", c.Namespace, c.Pending, c.Owed, c.Firing))
	}
	return said
}

// auditCounts returns an audit's counts by namespace.
func (x *index) auditCounts(set ...keys.Namespace) []schedule.NamespaceCount {
	x.t.Helper()
	audit, err := x.BeginAudit(x.t.Context())
	if err != nil {
		x.t.Fatal(err)
	}
	audit.CountBy(set)
	if _, err := audit.Partitions(x.t.Context(), []keys.Partition{keys.Single}, 128, 0, nil); err != nil {
		x.t.Fatal(err)
	}
	if err := audit.CountFirings(x.t.Context(), keys.Single); err != nil {
		x.t.Fatal(err)
	}
	return audit.Counted()
}

// Timers are counted where they are: pending, then due and claimed by nobody, then claimed, or owed because their key
// was set again.
func TestTimersAreCountedByState(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	expect := func(overview string, counted ...string) {
		t.Helper()
		if got := x.overview(); got != overview {
			t.Errorf("overview %q, want %q", got, overview)
		}
		if got := x.counted("shop:order,pay"); !slices.Equal(got, counted) {
			t.Errorf("counted %q, want %q", got, counted)
		}
	}
	expect("0 0 0", "shop:order 0 0 0", "pay 0 0 0", "other 0 0 0")
	for i := range 200 {
		x.do("FCALL", "timer_set", 1, fmt.Sprint("shop:order:timeout:", i), "p", "PX", 60000)
	}
	x.do("FCALL", "timer_set", 1, "shop:cart:timeout:1", "p", "PX", 60000)
	x.do("FCALL", "timer_set", 1, "pay:a:b:1", "p", "PX", 1)
	x.do("FCALL", "timer_set", 1, "pay:a:b:2", "p", "PX", 30)
	x.awaitExpiry("pay:a:b:2")
	first := fmt.Sprintf(" pay:a:b:1@%d", x.due("pay:a:b:1"))
	expect("201 2 0"+first, "shop:order 200 0 0", "pay 0 2 0", "other 1 0 0")

	x.do("FCALL", "timer_set", 1, "pay:a:b:1", "again", "PX", 60000) // the first is owed beside it
	expect("202 2 0"+first, "shop:order 200 0 0", "pay 1 2 0", "other 1 0 0")

	firings := x.claims("pay:a:b:1 deadline p", "pay:a:b:2 deadline p")
	expect("202 0 2", "shop:order 200 0 0", "pay 1 0 2", "other 1 0 0")
	given := firings[0].Outcome(schedule.OutcomeGivenBack)
	given.Pause = time.Hour
	if err := x.Release(t.Context(), []schedule.Outcome{given}); err != nil {
		t.Fatal(err)
	}
	expect("202 1 1", "shop:order 200 0 0", "pay 1 1 1", "other 1 0 0")
	if err := x.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
		t.Fatal(err)
	}
	expect("202 0 0", "shop:order 200 0 0", "pay 1 0 0", "other 1 0 0")
}

// A retry that waits beside a newer timer counts as the timer that it is; what an audit cancels does not.
func TestCountOfRetriesAndCancelled(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.audit()
	x.do("FCALL", "timer_set", 1, k, "newer", "PX", 60000)
	key, err := keys.Parse(k)
	if err != nil {
		t.Fatal(err)
	}
	r := schedule.Retry{EventID: "e", Key: key, Due: schedule.Millis(x.redisNow() + 60000), Attempt: 2,
		Payload: []byte("p")}
	if _, _, err := x.Retry(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	x.do("FCALL", "timer_set", 1, "app2:b:c:deleted", "p", "PX", 60000)
	x.do("DEL", "app2:b:c:deleted")
	if got, want := x.counted("app1"), []string{"app1 2 0 0", "other 0 0 0"}; !slices.Equal(got, want) {
		t.Errorf("counted %q, want %q", got, want)
	}
}

// The report of an audit replaces the timerd's last one. Reports of vanished timerds and nodes are removed.
func TestReportsOfAudits(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.beat(schedule.Self{Instance: "a"})
	x.beat(schedule.Self{Instance: "b"})
	record := func(instance, reason string) {
		t.Helper()
		err := x.RecordAudit(t.Context(), schedule.AuditReport{
			Instance: instance, At: time.UnixMilli(5000).UTC(), Took: time.Second, Reason: reason, Gaps: 2,
			LastGap: "gap",
			Timers:  []schedule.NamespaceCount{{Namespace: "shop", Pending: 3}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	record("dead", "start")
	record("a", "start")
	record("b", "start")
	x.do("HSET", keys.Single.Audits(), "127.0.0.1:7000 a", "{}", " b2", "no JSON")
	record("a", "regular")
	reports, err := query.Audits(t.Context(), x.Schedule)
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[string]string{}
	for _, r := range reports {
		reasons[r.Instance] = r.Reason
		if r.Node != "" || r.Took != time.Second || r.Gaps != 2 || r.At.UnixMilli() != 5000 || len(r.Timers) != 1 ||
			r.Timers[0].Pending != 3 {
			t.Errorf("%+v", r)
		}
	}
	if len(reports) != 2 || reasons["a"] != "regular" || reasons["b"] != "start" {
		t.Errorf("reports %+v", reports)
	}
}

// A call that sets a timer is counted by its message, or else in the index; a call that cancels is always counted in
// the index.
func TestCallsAreCounted(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	expect := func(set, cancelled int64) {
		t.Helper()
		if got, err := query.CountCalls(t.Context(), x.Node); err != nil ||
			got != (query.Calls{Set: set, Cancelled: cancelled, Partitions: 1}) {
			t.Errorf("%+v, %v; want %d set and %d cancelled", got, err, set, cancelled)
		}
	}
	expect(0, 0)
	x.do("FCALL", "timer_set", 1, k, "p", "PX", 60000)
	x.do("FCALL", "timer_set", 1, k, "p", "PX", 60000, "NX") // sets none
	expect(1, 0)
	for i := range 203 {
		key := fmt.Sprint("a:b:c:", i)
		x.do("FCALL", "timer_set", 1, key, "p", "PX", 60000)
		if said := x.do("FCALL", "timer_cancel", 1, key); said != "cancelled" {
			t.Fatalf("timer_cancel: %v", said)
		}
	}
	x.do("FCALL", "timer_cancel", 1, "a:b:c:1") // cancels none
	expect(204, 203)

	sub := x.rdb.Subscribe(t.Context(), keys.WakeChannel)
	defer func() { _ = sub.Close() }()
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	x.do("FCALL", "timer_set", 1, k, "p", "PX", 60000)
	message, err := sub.ReceiveMessage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for message.Payload == keys.AppMessage+"app1" {
		if message, err = sub.ReceiveMessage(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if wake, ok := keys.ParseWake(message.Payload); !ok || wake.Key != k {
		t.Errorf("message %q, want one of the timer that was set", message.Payload)
	}
	expect(204, 203)
}

// In a cluster mostly no message tells of a call.
func TestCallsAndCountsInCluster(t *testing.T) {
	t.Parallel()
	x := newClusterIndex(t)
	const n = 60
	for i := range n {
		x.set(fmt.Sprint("a:b:c:", i), "p", time.Hour)
	}
	for i := range n / 2 {
		if err := x.rdb.FCall(t.Context(), "timer_cancel", []string{fmt.Sprint("a:b:c:", i)}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	var calls query.Calls
	var pending int64
	for _, node := range nodes(t, x.Schedule) {
		got, err := query.CountCalls(t.Context(), node)
		if err != nil {
			t.Fatal(err)
		}
		calls.Set += got.Set
		calls.Cancelled += got.Cancelled
		calls.Partitions += got.Partitions
		seen, err := query.CountTimers(t.Context(), node)
		if err != nil || seen.Moving != 0 {
			t.Fatalf("%+v, %v", seen, err)
		}
		pending += seen.Pending
	}
	if calls != (query.Calls{Set: n, Cancelled: n / 2, Partitions: keys.Slots}) || pending != n/2 {
		t.Errorf("%+v, %d pending", calls, pending)
	}
	node := nodes(t, x.Schedule)[0]
	if _, err := node.Heartbeat(t.Context(), schedule.Self{Instance: "a", Version: "v1"}, time.Minute); err != nil {
		t.Fatal(err)
	}
	members, err := query.Members(t.Context(), x.Schedule)
	if err != nil || len(members) != 1 || members[0].Version != "v1" || !members[0].Alive {
		t.Errorf("%+v, %v", members, err)
	}
}
