package schedule_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// aside returns the timers set aside as "reason count app", and the listed ones as "key reason payload".
func (x *index) aside() (counts, listed []string) {
	x.t.Helper()
	all, err := query.ParkedOn(x.t.Context(), x.Node)
	if err != nil {
		x.t.Fatal(err)
	}
	for _, a := range all {
		counts = append(counts, fmt.Sprintf("%s %d %s", a.Reason, a.Count, a.Key.App))
	}
	if err := list(x.t, x.Schedule, keys.Namespace{}, func(p query.Timer) bool {
		listed = append(listed, fmt.Sprintf("%s %s %s", p.Key, p.Parked, p.Payload))
		return true
	}); err != nil {
		x.t.Fatal(err)
	}
	return counts, listed
}

func (x *index) parkedIs(counts, listed string) {
	x.t.Helper()
	c, l := x.aside()
	if fmt.Sprint(c) != counts || fmt.Sprint(l) != listed {
		x.t.Errorf("set aside %q, listed %q; want %s and %s", c, l, counts, listed)
	}
}

// Timers set aside are counted and listed until they have fired, were cancelled or are settled.
func TestSetAsideIsCountedAndListed(t *testing.T) {
	t.Parallel()
	x := newNarrowIndex(t)
	due := x.redisNow() + brief
	x.do("FCALL", "timer_set", 1, "app1:b:c:refused", "r", "PXAT", due)
	x.do("FCALL", "timer_set", 1, "app1:b:c:later", "l", "PX", 600_000)
	for i := range 3 {
		x.do("FCALL", "timer_set", 1, fmt.Sprintf("app2:b:c:%d", i), i, "PXAT", due+1+int64(i))
	}
	x.parkedIs("[]", "[app1:b:c:refused  r app2:b:c:0  0 app2:b:c:1  1 app2:b:c:2  2 app1:b:c:later  l]")
	x.awaitClock(due + 3)
	firings := x.setAside(3)
	if len(firings) != 1 {
		t.Fatalf("claimed %d, want 1", len(firings))
	}
	refused := firings[0].Outcome(schedule.OutcomeRefused)
	refused.Pause = time.Hour
	for range 2 {
		if err := x.Release(t.Context(), []schedule.Outcome{refused}); err != nil {
			t.Fatal(err)
		}
	}
	x.parkedIs("[rights 3 app2 refused 1 app1]",
		"[app1:b:c:refused refused r app2:b:c:0 rights 0 app2:b:c:1 rights 1 app2:b:c:2 rights 2 app1:b:c:later  l]")
	if found, err := x.ScanDue(t.Context(), 0, lease); err != nil ||
		found.Parked != (schedule.ParkedCounts{Rights: 3, Refused: 1}) {
		t.Errorf("scan: %+v, %v", found, err)
	}
	x.do("FCALL", "timer_cancel", 1, "app2:b:c:0")
	x.observe(expired("app2:b:c:1"))
	x.parkedIs("[rights 1 app2 refused 1 app1]",
		"[app1:b:c:refused refused r app2:b:c:1  1 app2:b:c:2 rights 2 app1:b:c:later  l]")
	x.grant()
	x.setAside(0)
	if err := x.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
		t.Fatal(err)
	}
	x.parkedIs("[]", "[app2:b:c:1  1 app2:b:c:2  2 app1:b:c:later  l]") // two are firing
	for _, index := range []string{keys.Single.Aside(), keys.Single.Refused()} {
		if x.do("EXISTS", index) != int64(0) {
			t.Errorf("%s is left", index)
		}
	}
}
