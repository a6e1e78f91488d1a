package schedule_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// becomeOwed sets a timer that becomes due and is claimed and given back, as by a timerd that cannot publish.
func (x *index) becomeOwed(key string) (due int64) {
	x.t.Helper()
	due = x.becomeDue(key)
	x.giveBack(false)
	return due
}

// A released timer that a timerd gives back stays released, although the resume goes on. It is shifted once; and one
// that was to become a dead letter becomes one.
func TestReleasedAndGivenBack(t *testing.T) {
	t.Parallel()
	for _, kind := range []schedule.ResumeKind{schedule.ResumeShift, schedule.ResumeDead} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			want := x.becomeOwed(k)
			x.awaitClock(want + 300)
			x.hold("app1")
			x.claims()
			l, h := x.resume("app1", schedule.Resume{Kind: kind})
			if kind == schedule.ResumeShift {
				want += int64(h.Resume.At - h.Since)
			}
			for range 3 {
				x.release(l, h, &schedule.Draw{})
				firings := x.claims(k + " deadline payload of " + k)
				if f := firings[0]; int64(f.Due) != want || f.Held != (kind == schedule.ResumeDead) || f.MayBeStored {
					t.Errorf("it is due at %d, want %d: %+v", f.Due, want, f)
				}
				if err := x.Release(t.Context(), schedule.Outcomes(schedule.OutcomeGivenBack, firings...)); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// A list that a timerd has read before the last hold ended, and copies only now, brings nothing back.
func TestAListThatIsCopiedLate(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.hold("app1")
	late := x.list()
	if err := x.list().Remove(t.Context(), namespace(t, "app1")); err != nil {
		t.Fatal(err)
	}
	if moving, err := late.CopyTo(t.Context(), x.Node); err != nil || len(moving) > 0 || late.Outdated() {
		t.Fatal(moving, err, late.Outdated())
	}
	x.list()
	x.becomeDue(k)
	x.claims(k + " deadline payload of " + k)
}

// A timer that is shifted never gets the id of one of its key that has fired.
func TestShiftNeverSharesAnID(t *testing.T) {
	t.Parallel()
	// shift shifts the held timer of k from its due time to that of a newer one, and lets it fire.
	shift := func(x *index, was, newer schedule.Millis, settled schedule.Firing) {
		x.t.Helper()
		l := x.list()
		h := *l.Find(namespace(x.t, "app1"))
		h.Since, h.Resume = l.Now-(newer-was), &schedule.Resume{Kind: schedule.ResumeShift, At: l.Now}
		if h.Since+newer-was != h.Resume.At {
			x.t.Fatal("the hold is of another length")
		}
		if err := l.Put(x.t.Context(), h); err != nil {
			x.t.Fatal(err)
		}
		if n := x.release(l, &h, &schedule.Draw{}); n != 1 {
			x.t.Fatalf("%d released", n)
		}
		f := x.claims(k + " deadline payload of " + k)[0]
		if f.Due != newer-1 || f.Ref == settled.Ref {
			x.t.Errorf("%s was fired after %s, want it due at %d", f.Ref, settled.Ref, newer-1)
		}
	}
	t.Run("that has fired before the hold", func(t *testing.T) {
		t.Parallel()
		x := newIndex(t)
		was := x.becomeOwed(k)
		x.do("FCALL", "timer_set", 1, k, "newer", "PX", 20)
		x.awaitClock(x.redisNow() + 20)
		both := x.claims(k+" deadline payload of "+k, k+" deadline newer")
		slices.SortFunc(both, func(a, b schedule.Firing) int { return int(a.Due - b.Due) })
		newer := both[1]
		if err := errors.Join(x.Release(t.Context(), schedule.Outcomes(schedule.OutcomeGivenBack, both[:1]...)),
			x.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, both[1:]...))); err != nil {
			t.Fatal(err)
		}
		x.hold("app1")
		x.claims()
		shift(x, schedule.Millis(was), newer.Due, newer)
	})
	t.Run("that fires while it is held", func(t *testing.T) {
		t.Parallel()
		x := newIndex(t)
		x.hold("app1")
		was := x.becomeDue(k)
		x.claims()
		l, _ := x.resume("app1", schedule.Resume{Kind: schedule.ResumeShift})
		due, _ := x.do("FCALL", "timer_set", 1, k, "newer", "PX", 20).(int64)
		x.awaitClock(max(int64(l.Now)+60, due))
		firings := x.claims(k + " deadline newer")
		if err := x.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
			t.Fatal(err)
		}
		newer := firings[0]
		shift(x, schedule.Millis(was), newer.Due, newer)
	})
}

// A shifted timer that has moved back for its id waits for the due time of that id. That wait is not of a resume, and
// does not end with a clock that was ahead.
func TestShiftedTimersThatMoveBackWait(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.hold("app1")
	was := x.becomeDue(k)
	x.claims()
	l := x.list()
	h := *l.Find(namespace(t, "app1"))
	const by = 2 * time.Hour
	h.Since, h.Resume = l.Now.Add(-by), &schedule.Resume{Kind: schedule.ResumeShift, At: l.Now}
	if err := l.Put(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	x.do("FCALL", "timer_set", 1, k, "newer", "PXAT", was+by.Milliseconds())
	beside := []any{"ZADD", keys.Single.Beside()}
	for i := range 150 { // no more of them may wait
		beside = append(beside, 0, fmt.Sprintf("%d:%s:%d.2", len(k), k, 9_000_000_000_000+i))
	}
	x.do(beside...)
	if n := x.release(l, &h, &schedule.Draw{}); n != 1 {
		t.Fatalf("%d released", n)
	}
	if err := x.list().Remove(t.Context(), h.Namespace); err != nil {
		t.Fatal(err)
	}
	x.putRight(0)
	x.claims()
	if ahead := x.claimableIn(k); ahead < time.Hour.Milliseconds() {
		t.Errorf("it fires in %d ms", ahead)
	}
}
