package schedule_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// isRestored marks the data as another server's, with a last heartbeat of the given age.
func (x *index) isRestored(age time.Duration) {
	x.t.Helper()
	x.do("HSET", keys.Single.Data(), ":i:", "another", ":s:", x.redisNow()-age.Milliseconds())
}

// waiting returns the wait of the timers, and checks whether there is one.
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

// free ends the wait, and releases the timers that no hold covers, as timerd does. It returns their number.
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

// Timers already due when a restored Redis was found wait, whatever their state; later ones fire. After the wait all
// fire, and the wait does not count as lateness.
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

	// The publisher looks for the events of the two that may have been published.
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
