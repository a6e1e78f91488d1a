package schedule_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// auditApps audits all timers, as the reconciler does, and returns the apps it met.
func (x *index) auditApps(began schedule.Millis) []string {
	x.t.Helper()
	met := x.met()
	x.doubt(began, met)
	return met
}

// met returns the apps that an audit meets.
func (x *index) met() []string {
	x.t.Helper()
	met := x.audit().Apps
	slices.Sort(met)
	return slices.Compact(met)
}

func (x *index) beginAudit() *schedule.Audit {
	x.t.Helper()
	a, err := x.BeginAudit(x.t.Context())
	if err != nil || a == nil {
		x.t.Fatalf("%v, %v; want an audit", a, err)
	}
	return a
}

func (x *index) doubt(began schedule.Millis, met []string) {
	x.t.Helper()
	if err := x.beginAudit().DoubtApps(x.t.Context(), keys.Single, began, met); err != nil {
		x.t.Fatal(err)
	}
}

// after waits for another millisecond, and returns the time.
func (x *index) after() schedule.Millis {
	x.t.Helper()
	now := x.redisNow()
	x.awaitClock(now + 1)
	return schedule.Millis(x.redisNow())
}

// knows checks the known apps and their order.
func (x *index) knows(want ...string) {
	x.t.Helper()
	got, err := x.Apps(x.t.Context())
	if err != nil || !slices.Equal(got, want) {
		x.t.Errorf("apps %q, %v; want %q", got, err, want)
	}
}

func (x *index) set(key string) {
	x.t.Helper()
	x.do("FCALL", "timer_set", 1, key, "p", "PX", 600_000)
	x.after() // so that apps differ in when they were set
}

// An app is forgotten by the second audit that meets no timer of it, unless one was set since. Apps with timers stay,
// and the ones known for longest come first.
func TestAppsWithoutTimersAreForgotten(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.damaged = true
	for _, app := range []string{"stays", "goes", "again", "aside", "retried"} {
		x.set(app + ":b:c:1")
	}
	for _, app := range []string{"goes", "again", "aside", "retried"} {
		x.do("FCALL", "timer_cancel", 1, app+":b:c:1")
	}
	// A timer beside a newer one and a timer set aside are timers of the app too.
	x.do("ZADD", keys.Single.Due(), x.redisNow()+600_000, ":s1.:aside:b:c:1")
	for i := range 30 {
		x.do("FCALL", "timer_set", 1, fmt.Sprintf("stays:b:c:%d", i), "p", "PX", 600_000)
	}
	if met := x.auditApps(x.after()); !slices.Equal(met, []string{"aside", "stays"}) {
		t.Errorf("met %q", met)
	}
	x.knows("stays", "aside", "again", "goes", "retried") // doubted at one time
	x.set("again:b:c:1")
	key, err := keys.Parse("retried:b:c:1")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := x.Retry(t.Context(),
		schedule.Retry{EventID: "e", Key: key, Due: schedule.Millis(x.redisNow() + 600_000), Attempt: 2}); err != nil {
		t.Fatal(err)
	}
	x.auditApps(x.after())
	x.knows("stays", "aside", "again", "retried")
	x.set("goes:b:c:1")
	x.knows("stays", "aside", "again", "retried", "goes")
}

// A timer set during an audit, or while another timerd's audit doubts its app, keeps the app known.
func TestAppsAreNotForgottenBesideATimerThatIsSet(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.set("app:b:c:1")
	x.do("FCALL", "timer_cancel", 1, "app:b:c:1")
	began := x.after()
	met := x.met()
	x.set("app:b:c:1") // after the pages
	x.auditApps(began) // of another timerd, with the timer
	x.doubt(began, met)
	x.knows("app")
	x.doubt(began, met) // a doubt is no older than the audit that it ends
	x.knows("app")
	x.auditApps(x.after()) // the timer ends the doubt
	x.do("FCALL", "timer_cancel", 1, "app:b:c:1")
	x.auditApps(x.after())
	x.knows("app")
	began = x.after()
	met = x.met()
	x.set("app:b:c:1")
	x.doubt(began, met)
	x.knows("app")
}

// A partition knows a limited number of apps by name, and has one entry for all others.
func TestAppsBeyondThoseThatAreKnown(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	const most = 1000
	sub := x.rdb.Subscribe(t.Context(), keys.WakeChannel)
	defer sub.Close()
	for i := range most + 20 {
		x.do("FCALL", "timer_set", 1, fmt.Sprintf("app%d:b:c:1", i), "p", "PX", 600_000)
	}
	names, err := x.Apps(t.Context())
	if err != nil || len(names) != most+1 || !slices.Contains(names, schedule.OtherApps) {
		t.Fatalf("%d apps, %v; want %d and one for the others", len(names), err, most)
	}
	x.auditApps(x.after())
	x.auditApps(x.after())
	if names, err = x.Apps(t.Context()); err != nil || len(names) != most+1 {
		t.Errorf("%d apps after audits, %v", len(names), err)
	}
	for i := range most + 20 {
		x.do("FCALL", "timer_cancel", 1, fmt.Sprintf("app%d:b:c:1", i))
	}
	if err := x.beginAudit().ForgetApps(t.Context()); err != nil {
		t.Fatal(err)
	}
	x.knows()
}
