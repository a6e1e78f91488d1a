package admin_test

import (
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/internal/testenv/lab"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// A namespace is resumed at a rate while Redis's clock is an hour ahead. Once that is back, the times that were drawn by it are drawn
// again, at the rate, and what becomes due is free.
func TestResumeByAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	clock, err := lab.NewClock(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, devserver.Environment(clock.Environment()...))
	w.hold("app")
	w.becomeDue("app:x:t:1", "app:x:t:2", "app:x:t:3", "app:x:t:4", "app:x:t:5", "app:x:t:6")
	if err := clock.Set(time.Hour); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, patience, func() bool {
		now, err := w.rdb.Time(t.Context()).Result()
		return err == nil && now.After(time.Now().Add(30*time.Minute))
	}, "the clock to be ahead")
	const perSecond = 1
	ended, released := make(chan error, 1), make(chan struct{}, 1000)
	go func() {
		ended <- w.caller().Resume(t.Context(), w.namespace("app"), schedule.Resume{Kind: schedule.ResumeRate, Rate: perSecond}, func(p admin.ResumeProgress) {
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
	if err := clock.Set(0); err != nil {
		t.Fatal(err)
	}
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
	w.became("app:x:t:1 fired, app:x:t:2 fired, app:x:t:3 fired, app:x:t:4 fired, app:x:t:5 fired, app:x:t:6 fired, app:x:t:7 fired")
}
