package deliver_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/test/system"
)

// Two timerds, one of them killed at a time, and a hold: each postponed event comes once.
func TestPostponedThroughCrashes(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Env["TIMERD_RETRY"] = "*=1s"
	first, second := s.Start(), s.Start()
	c := s.Collect()
	const timers, rounds = 20, 4
	for i := range timers {
		s.Do("FCALL", "timer_set", 1, fmt.Sprintf("shop:pay:callback:%d", i), i, "PX", 100)
	}
	origins := map[string]string{}
	for _, e := range s.Events(c, timers) {
		origins[e.Key.String()] = e.ID
	}
	for round := range rounds {
		if round == 2 {
			s.Says(0, "hold shop")
		}
		for _, m := range c.All()[round*timers:] {
			for range 3 {
				s.Retry(m, event.PostponeHeader, "1", event.DelayHeader, "300ms")
			}
		}
		switch round {
		case 0:
			first.Kill()
			first = s.Start()
		case 1:
			second.Kill()
			second = s.Start()
		case 2:
			s.NoRequests()
			s.Holds("shop", timers)
			if n := c.Len(); n != (round+1)*timers {
				t.Errorf("%d events under a hold, want %d", n, (round+1)*timers)
			}
			s.Says(0, "resume shop --shift")
		}
		keys := map[string]bool{}
		for _, e := range s.Events(c, (round+2)*timers)[(round+1)*timers:] {
			keys[e.Key.String()] = true
			if e.Attempt != 1 || e.Origin != origins[e.Key.String()] {
				t.Errorf("round %d: %+v, want attempt 1 and the origin %s", round, e, origins[e.Key.String()])
			}
		}
		if len(keys) != timers {
			t.Errorf("round %d: events of %v", round, slices.Sorted(maps.Keys(keys)))
		}
	}
	s.NoRequests()
	s.Settled()
	c.Stays((rounds+1)*timers, 100*time.Millisecond)
}
