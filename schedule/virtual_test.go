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
