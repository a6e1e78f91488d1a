package admin_test

import (
	"slices"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/internal/testenv/lab"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// newWorldWithClock returns a world whose Redis has a clock of its own.
func newWorldWithClock(t *testing.T) (*world, *lab.Clock) {
	t.Helper()
	clock, err := lab.NewClock(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return newWorld(t, devserver.Environment(clock.Environment()...)), clock
}

// setClock sets the clock of Redis ahead of the machine's, and returns once Redis shows it.
func (w *world) setClock(clock *lab.Clock, ahead time.Duration) {
	w.t.Helper()
	if err := clock.Set(ahead); err != nil {
		w.t.Fatal(err)
	}
	testenv.Eventually(w.t, patience, func() bool {
		now, err := w.rdb.Time(w.t.Context()).Result()
		return err == nil && (time.Until(now)-ahead).Abs() < 10*time.Minute
	}, "Redis to show the clock")
}

// A namespace is resumed at a rate while Redis's clock is an hour ahead. Once the clock is back, its drawn times are
// drawn again, at the rate, and timers that become due are free.
func TestResumeByAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	w, clock := newWorldWithClock(t)
	w.hold("app")
	w.becomeDue("app:x:t:1", "app:x:t:2", "app:x:t:3", "app:x:t:4", "app:x:t:5", "app:x:t:6")
	w.setClock(clock, time.Hour)
	const perSecond = 1
	ended, released := make(chan error, 1), make(chan struct{}, 1000)
	go func() {
		ended <- w.caller().Resume(t.Context(), w.namespace("app"),
			schedule.Resume{Kind: schedule.ResumeRate, Rate: perSecond}, func(p admin.ResumeProgress) {
				if p.Released >= 3 { // at times that are drawn
					released <- struct{}{}
				}
			})
	}()
	<-released
	// Another one has died in its turn.
	if err := w.rdb.Set(t.Context(), keys.Single.Resuming(), "died", 3*time.Second).Err(); err != nil {
		t.Fatal(err)
	}
	w.setClock(clock, 0)
	back := time.Now()
	testenv.Eventually(t, patience, func() bool {
		w.claim()
		return len(w.fired) == 6
	}, "the timers that had got times by the clock that was ahead")
	if took := time.Since(back); took < 2*time.Second {
		t.Errorf("all fired within %v, want them spaced", took)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	w.becomeDue("app:x:t:7")
	w.became("app:x:t:1 fired, app:x:t:2 fired, app:x:t:3 fired, app:x:t:4 fired, app:x:t:5 fired, app:x:t:6 fired, " +
		"app:x:t:7 fired")
}

// Holds that begin while Redis's clock is an hour ahead last as long as they were asked to once it is back. A hold
// that began before and was prolonged meanwhile keeps its beginning.
func TestHoldsByAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	w, clock := newWorldWithClock(t)
	hold := func(namespace string, lasts time.Duration) {
		t.Helper()
		asked := schedule.Hold{Namespace: w.namespace(namespace)}
		if held, err := w.caller().Hold(t.Context(), asked, lasts); err != nil || len(held.Missing) > 0 {
			t.Fatalf("hold %s: %+v, %v", namespace, held, err)
		}
	}
	hold("right", 3*time.Hour)
	hold("prolonged", 2*time.Hour)
	before, err := w.schedule.Holds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.setClock(clock, time.Hour)
	for namespace, lasts := range map[string]time.Duration{
		"prolonged": 3 * time.Hour, "begun": 3 * time.Hour, "endless": 0, "short": admin.MinHold,
	} {
		hold(namespace, lasts)
	}
	w.setClock(clock, 0)
	go w.caller().Run(t.Context())
	var list *schedule.HoldList
	find := func(namespace string) *schedule.Hold { return list.Find(w.namespace(namespace)) }
	testenv.Eventually(t, patience, func() bool {
		if list, err = w.schedule.Holds(t.Context()); err != nil {
			t.Fatal(err)
		}
		return find("short") == nil && !slices.ContainsFunc(list.Holds, func(h schedule.Hold) bool {
			return h.Since > list.Now || h.Until > list.Now.Add(3*time.Hour)
		})
	}, "holds as a clock that is right makes them")
	if *find("right") != *before.Find(w.namespace("right")) ||
		find("prolonged").Since != before.Find(w.namespace("prolonged")).Since {
		t.Errorf("holds that began before: %+v, want them to begin as in %+v", list.Holds, before.Holds)
	}
	least := list.Now.Add(3*time.Hour - patience)
	if find("begun").Until < least || find("prolonged").Until < least || find("endless").Until != 0 {
		t.Errorf("holds: %+v, want them to last as long as they were asked to", list.Holds)
	}
}
