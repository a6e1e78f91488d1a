package core_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/schedule"
	"github.com/timerd-io/timerd/test/system"
)

// The heartbeats of a running timerd have its firings and their lateness, and a timer moved to now fires at once.
func TestHeartbeatsTellWhatFired(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Start()
	const n = 50
	c := testenv.Collect(t, s.JS, "TIMERS", "timers.fired.counted.>")
	for i := range n {
		s.Do("FCALL", "timer_set", 1, fmt.Sprintf("counted:b:c:%d", i), "p", "PX", 3600_000)
	}
	sched := schedule.New(s.RDB, schedule.DefaultMaxPayload)
	found, err := query.Find(t.Context(), sched, query.Query{Prefix: "counted:"}, query.Place{},
		query.Most{Timers: 100})
	if err != nil || len(found.Timers) != n {
		t.Fatalf("%+v, %v", found, err)
	}
	var moves []schedule.Move
	for _, timer := range found.Timers {
		moves = append(moves, schedule.Move{Which: timer.Which()})
	}
	results, err := sched.Move(t.Context(), moves)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Outcome != schedule.MoveDone {
			t.Errorf("%+v", r)
		}
	}
	testenv.Eventually(t, time.Minute, func() error {
		members, err := query.Members(t.Context(), sched)
		if err != nil {
			return err
		}
		for _, m := range members {
			if m.Counts == nil {
				continue
			}
			fired := int64(0)
			for _, l := range m.Counts.Lateness {
				fired += l.Count()
			}
			if fired >= n {
				return nil
			}
		}
		return errors.New("its heartbeats do not tell of all")
	}, "the heartbeats to tell")
	if got := len(c.All()); got != n {
		t.Errorf("%d fired, want %d", got, n)
	}
}
