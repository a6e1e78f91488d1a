package admin_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// All that match are moved, each once, also into the middle of where they are; or they fire now.
func TestMove(t *testing.T) {
	t.Parallel()
	w := newTimerWorld(t, testenv.Redis(t).Client())
	ctx := t.Context()
	const n = 500
	last := w.set("shop", n, time.Hour)
	w.set("pay", 10, time.Hour)
	middle := last.Add(-n / 2 * time.Millisecond)
	steps := 0
	done, err := w.Move(ctx, of("shop"), middle, func(m admin.Moved) {
		steps++
		if m.Moved > n {
			t.Errorf("%+v", m)
		}
	})
	if err != nil || done.Moved < n-1 || done.TooLate+done.Held+done.Changed+done.Denied > 0 || steps < n/64 {
		t.Errorf("%+v in %d steps, %v", done, steps, err)
	}
	at := of("shop")
	at.From, at.Before = middle, middle.Add(time.Millisecond)
	if found, err := w.Count(ctx, at, func(admin.TimerCount) {}); err != nil || found.Timers != n {
		t.Errorf("%+v, %v are due then, want %d", found, err, n)
	}
	done, err = w.Move(ctx, at, time.Time{}, func(admin.Moved) {})
	if err != nil || done.Moved != n {
		t.Errorf("now: %+v, %v", done, err)
	}
	done, err = w.Move(ctx, admin.Selection{Query: query.Query{States: []query.State{query.StateOwed}}}, time.Time{},
		func(admin.Moved) {})
	if err != nil || done.TooLate != n {
		t.Errorf("again: %+v, %v", done, err)
	}
	if found, err := w.Count(ctx, of("shop"), func(admin.TimerCount) {}); err != nil || found.Late != n {
		t.Errorf("%+v, %v; want %d owed", found, err, n)
	}
	if w.left("pay") != 10 {
		t.Error("others were moved")
	}
}

// A timer whose key has another one that is due then is due a little later, and is moved once, however often the search
// comes to it.
func TestMoveOfTwoTimersOfEachKey(t *testing.T) {
	t.Parallel()
	w := newTimerWorld(t, testenv.Redis(t).Client())
	const n = 300
	last := w.set("shop", n, time.Hour)
	for i, name := range names("shop", n) {
		key, err := keys.Parse(name)
		if err != nil {
			t.Fatal(err)
		}
		retry := schedule.Retry{EventID: fmt.Sprint(i), Key: key, Due: schedule.MillisOf(last.Add(-time.Minute)),
			Attempt: 2}
		if _, set, err := w.schedule.Retry(t.Context(), retry); err != nil || !set {
			t.Fatal(set, err)
		}
	}
	done, err := w.Move(t.Context(), of("shop"), last.Add(time.Hour), func(admin.Moved) {})
	if err != nil || done != (admin.Moved{Moved: 2 * n}) || w.left("shop") != 2*n {
		t.Errorf("%+v, %v; want %d moved", done, err, 2*n)
	}
}

// It ends on request, and returns its progress.
func TestMoveIsInterrupted(t *testing.T) {
	t.Parallel()
	w := newTimerWorld(t, testenv.Redis(t).Client())
	const n = 1000
	w.set("shop", n, time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	done, err := w.Move(ctx, of("shop"), time.Time{}, func(admin.Moved) { cancel() })
	if !errors.Is(err, context.Canceled) || done.Moved == 0 || done.Moved == n {
		t.Fatalf("%+v, %v", done, err)
	}
	rest, err := w.Move(t.Context(), admin.Selection{Query: query.Query{States: []query.State{query.StatePending}}},
		time.Time{}, func(admin.Moved) {})
	if err != nil || done.Moved+rest.Moved != n {
		t.Errorf("%+v and %+v, %v", done, rest, err)
	}
}
