package notify_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/notify"
	"github.com/timerd-io/timerd/schedule"
)

// settlerRecorder is a Settler that keeps what it is told, and fails on demand.
type settlerRecorder struct {
	mu       sync.Mutex
	settled  map[string]int // refs
	released map[string]int
	stored   int // given back, perhaps published
	calls    int
	fail     error
}

func (s *settlerRecorder) ServerOf(keys.Partition) string { return "" }

func (s *settlerRecorder) Settle(_ context.Context, outcomes []schedule.Outcome) error {
	return s.note(&s.settled, outcomes)
}

func (s *settlerRecorder) Release(_ context.Context, outcomes []schedule.Outcome) error {
	return s.note(&s.released, outcomes)
}

func (s *settlerRecorder) note(in *map[string]int, outcomes []schedule.Outcome) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.fail != nil {
		return s.fail
	}
	if *in == nil {
		*in = make(map[string]int)
	}
	for i := range outcomes {
		(*in)[outcomes[i].Ref]++
		if outcomes[i].Kind >= schedule.OutcomeGivenBack && outcomes[i].MayBeStored {
			s.stored++
		}
	}
	return nil
}

func (s *settlerRecorder) failWith(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = err
}

func (s *settlerRecorder) counts() (settled, released, calls int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.settled), len(s.released), s.calls
}

// claimAgain returns those of some firings that were released, as other claims of them.
func (s *settlerRecorder) claimAgain(firings []schedule.Firing) (again []schedule.Firing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range firings {
		if s.released[f.Ref] > 0 {
			f.Ref += " again"
			again = append(again, f)
		}
	}
	return again
}

// expect waits until exactly so many firings are settled and released, each once.
func (s *settlerRecorder) expect(t *testing.T, settled, released int) {
	t.Helper()
	testenv.Eventually(t, patience, func() error {
		if done, back, _ := s.counts(); done != settled || back != released {
			return fmt.Errorf("%d settled and %d released, want %d and %d", done, back, settled, released)
		}
		return nil
	}, "settling")
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, counts := range []map[string]int{s.settled, s.released} {
		for ref, n := range counts {
			if n != 1 {
				t.Errorf("%s was settled or released %d times", ref, n)
			}
		}
	}
}

// hookCounts is what the hooks told.
type hookCounts struct {
	fired, duplicates, early, settled, released int
	failed                                      map[notify.Failure]int
}

// hookCounter counts what the hooks tell.
type hookCounter struct {
	mu  sync.Mutex
	now hookCounts
}

func (c *hookCounter) attach(p *notify.Publisher) {
	locked := func(f func()) {
		c.mu.Lock()
		defer c.mu.Unlock()
		f()
	}
	c.now.failed = make(map[notify.Failure]int)
	p.OnFired = func(_ *schedule.Firing, lateness time.Duration, duplicate bool) {
		locked(func() {
			c.now.fired++
			if duplicate {
				c.now.duplicates++
			}
			if lateness < 0 {
				c.now.early++
			}
		})
	}
	p.OnFailed = func(class notify.Failure) { locked(func() { c.now.failed[class]++ }) }
	p.OnSettled = func(n int) { locked(func() { c.now.settled += n }) }
	p.OnReleased = func(n int) { locked(func() { c.now.released += n }) }
}

func (c *hookCounter) counts() hookCounts {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now
	now.failed = maps.Clone(now.failed)
	return now
}
