package schedule_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/schedule"
)

// A wait for keys that no timerd takes in ends with its context. It leaves no key that a later event would turn
// into a timer.
func TestAwaitKeysLeavesNothing(t *testing.T) {
	rdb := testenv.Redis(t).Client()
	if err := schedule.MakeVirtual(t.Context(), rdb, "a"); err != nil {
		t.Fatal(err)
	}
	s := schedule.NewVirtual(rdb, schedule.DefaultMaxPayload)
	if _, err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.AwaitKeys(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the wait ended with %v", err)
	}
	if left := rdb.Keys(t.Context(), "timerd:advance:*").Val(); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
}

// A flush leaves data that are as old as before, so nothing waits to be compared with the streams, however long ago the
// last heartbeat was. An advance does not rest while timers wait after a restore.
func TestAdvanceAfterFlushAndRestore(t *testing.T) {
	rdb := testenv.Redis(t).Client()
	if err := schedule.MakeVirtual(t.Context(), rdb, "a"); err != nil {
		t.Fatal(err)
	}
	s := schedule.NewVirtual(rdb, schedule.DefaultMaxPayload)
	load(t, s)
	x := &index{Schedule: s, Node: onlyNode(t, s), t: t, rdb: rdb, dues: map[string]int64{}}
	x.HearSince(0)
	advance := func(open int, restored bool) {
		t.Helper()
		is, err := s.Advance(t.Context(), schedule.AtOnce, 0)
		if err != nil || is.Due+is.Firing != open || is.Restored != restored {
			t.Errorf("%+v, %v; want %d open, of a restored Redis: %t", is, err, open, restored)
		}
	}
	x.beat(schedule.Self{Instance: "a"})
	x.age("a", time.Hour)
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	x.becomeDue(k)
	x.fires(k + " deadline payload of " + k)
	advance(0, false)

	x.isRestored(time.Hour)
	x.becomeDue(k)
	x.claims()
	advance(0, true)
	x.free(x.waiting(true))
	advance(1, false)
}
