package schedule_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// countsAre fails unless the overview counts so many held, owed and firing timers, and so many unseen ones.
func (x *index) countsAre(held, owed, firing, unseen int64) {
	x.t.Helper()
	if got, want := x.auditCounts()[0], (schedule.NamespaceCount{Namespace: keys.Other, Held: held, Owed: owed,
		Firing: firing}); unseen == 0 && got != want {
		x.t.Errorf("an audit counts %+v, want %+v", got, want)
	}
	seen, err := query.CountTimers(x.t.Context(), x.Node)
	if err != nil {
		x.t.Fatal(err)
	}
	if seen.Held != held || seen.Owed != owed || seen.Firing != firing || seen.Unseen != unseen {
		x.t.Errorf("%d held, %d owed, %d firing, %d unseen; want %d, %d, %d, %d", seen.Held, seen.Owed, seen.Firing,
			seen.Unseen, held, owed, firing, unseen)
	}
}

// During a resume every view shows as held the timers that the next claim would hold, and no others.
func TestStatesDuringAResume(t *testing.T) {
	t.Parallel()
	const released, retried = "app1:trans:notice:released", k
	const owed, later = "app1:trans:notice:owed", "app1:trans:notice:later"
	x := newIndex(t)
	x.hold("app1")
	x.becomeDue(released)
	x.claims()
	l, h := x.resume("app1", schedule.Resume{Kind: schedule.ResumeRate, Rate: 1})
	times, err := l.Draw(t.Context(), h, 10, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	x.release(l, h, &times)
	x.stateIs(released, "owed payload of "+released) // though it was due before the resume

	x.do("FCALL", "timer_set", 1, owed, "v", "PX", 20)
	x.awaitExpiry(owed)
	x.observe(expired(owed))
	x.do("FCALL", "timer_set", 1, k, "newer", "PX", 60_000)
	x.retry("an event", x.redisNow()+20, 2, "again")
	x.awaitClock(x.redisNow() + 30)
	x.do("DEL", k)
	x.observe(gone(k))
	x.stateIs(owed, "owed v")
	if got := x.stateOf(retried); got != "owed again" {
		t.Errorf("timer_get: %q", got)
	}
	x.countsAre(0, 3, 0, 0)

	// Now they are due before a resume that has not come to them yet.
	x.hold("app1")
	x.resume("app1", schedule.Resume{Kind: schedule.ResumeRate, Rate: 1})
	x.becomeDue(later)
	x.stateIs(released, "owed payload of "+released)
	x.stateIs(owed, "held v")
	if got := x.stateOf(retried); got != "held again" {
		t.Errorf("timer_get: %q", got)
	}
	x.stateIs(later, "owed payload of "+later)
	x.countsAre(2, 2, 0, 0)
	x.awaitClock(x.redisNow() + 1)
	x.claims(released+" deadline payload of "+released, later+" deadline payload of "+later)
	x.countsAre(2, 0, 2, 0) // after a claim
	x.claims()
	x.stateIs(owed, "held v")
	x.countsAre(2, 0, 2, 0)
}

// A firing given back though perhaps published is firing in every view, with a pause or without.
func TestGivenBackIsFiring(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.becomeDue(k, k+"2", k+"3")
	firings := x.claimFor(lease).Firings
	given := schedule.Outcomes(schedule.OutcomeGivenBack, firings...)
	for i := range given {
		given[i].MayBeStored = i < 2
		given[i].Pause = time.Duration(i) * time.Hour
	}
	if err := x.Release(t.Context(), given); err != nil {
		t.Fatal(err)
	}
	x.countsAre(0, 1, 2, 0)
	for i, state := range []string{"firing", "firing", "owed"} {
		key := firings[i].Key.String()
		x.stateIs(key, state+" payload of "+key)
	}
	x.hold("app1")
	x.countsAre(1, 0, 2, 0)
}

// Without a claim, as while NATS is away, nobody has looked at the due timers. The held ones among them are counted all
// the same, or reported as unknown.
func TestHeldBeforeAnyClaim(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	for i := range 300 {
		x.do("FCALL", "timer_set", 1, fmt.Sprint("a:b:c:", i), "v", "PX", 5)
		x.do("FCALL", "timer_set", 1, fmt.Sprint("x:b:c:", i), "v", "PX", 5)
	}
	x.awaitClock(x.due("x:b:c:299"))
	x.countsAre(0, 600, 0, 0)
	x.hold("a")
	x.countsAre(300, 300, 0, 0)
	x.setDue(2000, "")
	seen, err := query.CountTimers(t.Context(), x.Node)
	if err != nil || seen.Unseen != 1600 || seen.Held+seen.Owed != 2600 || seen.OldestDue.IsZero() {
		t.Errorf("%+v, %v; want 1600 of 2600 that are not known", seen, err)
	}
	held := 0
	if err := query.Names(t.Context(), x.Schedule, query.Query{Namespace: keys.Namespace{App: "a"}},
		func(p query.Page) bool {
			for _, timer := range p.Timers {
				if timer.State == query.StateHeld {
					held++
				}
			}
			return true
		}); err != nil || held != 300 {
		t.Errorf("%d listed as held, %v; want 300", held, err)
	}
}

// A resume waits for due timers of its namespace that nobody has looked at, and for none of its neighbours.
func TestLookForWhatIsUnseen(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		key    string
		owed   bool // because of its event
		unseen bool
	}{
		"due":                   {k, false, true},
		"owed":                  {k, true, true},
		"a neighbour's is due":  {"app2:b:c:1", false, false},
		"a neighbour's is owed": {"app2:b:c:1", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			x.do("FCALL", "timer_set", 1, test.key, "v", "PX", 20)
			x.awaitExpiry(test.key)
			if test.owed {
				x.observe(expired(test.key))
			}
			for cutoff, want := range map[int64]bool{x.redisNow(): test.unseen, x.redisNow() - 10_000: false,
				0: false} {
				parts, err := x.LookHeld(t.Context(), schedule.Millis(cutoff), namespace(t, "app1"))
				if err != nil || len(parts) > 1 || len(parts) == 1 != want || want && !parts[0].Unseen {
					t.Errorf("until %d: %+v, %v; want %t", cutoff, parts, err, want)
				}
			}
		})
	}
	t.Run("behind a crowd", func(t *testing.T) {
		t.Parallel()
		x := newIndex(t)
		x.setDue(1100, "")
		parts, err := x.LookHeld(t.Context(), schedule.Millis(x.redisNow()), namespace(t, "app2"))
		if err != nil || len(parts) != 1 || !parts[0].Unseen {
			t.Errorf("%+v, %v; want that it is not known", parts, err)
		}
	})
}
