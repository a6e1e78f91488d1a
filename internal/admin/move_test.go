package admin_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/testenv"
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
	done, err = w.Move(ctx, admin.Selection{Query: query.Query{States: []query.State{query.StateOwed}}}, time.Time{}, func(admin.Moved) {})
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

// It ends when it is told to, and says how far it has come.
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
	rest, err := w.Move(t.Context(), admin.Selection{Query: query.Query{States: []query.State{query.StatePending}}}, time.Time{}, func(admin.Moved) {})
	if err != nil || done.Moved+rest.Moved != n {
		t.Errorf("%+v and %+v, %v", done, rest, err)
	}
}
