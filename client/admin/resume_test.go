package admin_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/client/admin"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv/timerdtest"
)

// atMost checks that firings came at a rate a second at most. The first ones may have come late, and so closer to the
// others.
func atMost(t *testing.T, all []client.Event, rate int) {
	t.Helper()
	last := len(all) - 1
	for first := range len(all) / 4 {
		if all[last].Time.Sub(all[first].Time) >= time.Duration(last-first)*time.Second/time.Duration(rate)*9/10 {
			return
		}
	}
	t.Errorf("%d timers at %d a second took %v", len(all), rate, all[last].Time.Sub(all[0].Time))
}

func TestResumeRate(t *testing.T) {
	t.Parallel()
	o := newOutage(t)
	o.startTimerd()
	dues := o.hold("shop", 60)
	o.held("shop=60")
	if err := o.operator.Resume(t.Context(), "shop", admin.ResumeRate(40)); err != nil {
		t.Fatal(err)
	}
	all := events(o.fired, t, 60)
	atMost(t, all, 40)
	for _, e := range all {
		if due := dues[e.Key.String()]; !e.Due.Equal(due) {
			t.Errorf("%s fired with the due time %v, want %v", e.Key, e.Due, due)
		}
	}
	o.held()
}

func TestResumeShift(t *testing.T) {
	t.Parallel()
	o := newOutage(t)
	o.startTimerd()
	dues := o.hold("shop", 30)
	since := o.held("shop=30")[0].Since
	if err := o.operator.Resume(t.Context(), "shop", admin.ResumeShift()); err != nil {
		t.Fatal(err)
	}
	longest := timerdtest.Now(t, o.rdb).Sub(since)
	all := events(o.fired, t, 30)
	by := all[0].Due.Sub(dues[all[0].Key.String()])
	if by <= 0 || by > longest {
		t.Errorf("shifted by %v, want the length of the hold, at most %v", by, longest)
	}
	for _, e := range all {
		if want := dues[e.Key.String()].Add(by); !e.Due.Equal(want) {
			t.Errorf("%s is due at %v, want %v like the others", e.Key, e.Due, want)
		}
	}
}

func TestResumeDead(t *testing.T) {
	t.Parallel()
	o := newOutage(t)
	o.startTimerd()
	dues := o.hold("shop", 30)
	o.held("shop=30")
	if err := o.operator.Resume(t.Context(), "shop", admin.ResumeDead()); err != nil {
		t.Fatal(err)
	}
	for _, e := range events(o.dead, t, 30) {
		if !e.Due.Equal(dues[e.Key.String()]) || e.DeadReason != event.ReasonHeld {
			t.Errorf("dead letter of %s: due %v, reason %q", e.Key, e.Due, e.DeadReason)
		}
	}
	o.fired.Wait(0, patience)
}

// An interrupted resume names its obstacle, is listed, and is finished by a timerd.
func TestInterruptedResume(t *testing.T) {
	t.Parallel()
	o := newOutage(t)
	o.hold("shop", 20)                                             // nobody looks at due timers
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // it looks several times, on a busy machine too
	defer cancel()
	how := admin.ResumeRate(20)
	err := o.operator.Resume(ctx, "shop", how)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(),
		"no timerd has looked at all due timers yet") {
		t.Errorf("Resume = %v, want its obstacle", err)
	}
	h := o.held("shop=20")[0]
	if h.Resume != how || h.Resume.String() != "rate 20/s" || h.ResumedSince.Before(h.Since) ||
		!strings.Contains(h.ResumedBy, "@") {
		t.Errorf("Holds: %+v, want it being resumed at 20 a second", h)
	}
	o.startTimerd()
	all := events(o.fired, t, 20)
	atMost(t, all, 20)
	o.held()
}

// Many who resume the same namespace at once release each timer once.
func TestConcurrentResumes(t *testing.T) {
	t.Parallel()
	o := newOutage(t)
	o.startTimerd()
	o.hold("shop", 50)
	o.held("shop=50")
	errs := make(chan error)
	for range 4 {
		go func() { errs <- o.operator.Resume(t.Context(), "shop", admin.ResumeNow()) }()
	}
	resumed := 0
	for range 4 {
		switch err := <-errs; {
		case err == nil:
			resumed++
		case !errors.Is(err, admin.ErrNotHeld):
			t.Error(err)
		}
	}
	if resumed == 0 {
		t.Error("nobody has resumed it")
	}
	events(o.fired, t, 50)
	o.held()
}
