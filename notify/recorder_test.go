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

// settlerRecorder is a Settler that keeps its calls, and fails on demand.
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

// claimAgain returns the released ones of some firings, each as another claim.
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

// expect waits until exactly these numbers of firings are settled and released, each firing once.
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

// counts are the counts in the publisher's metrics.
type counts struct {
	fired, duplicates, early, settled, released int
	failed                                      map[notify.Failure]int
	tooLate                                     int
	late                                        map[string]notify.LateAction // the last action, by the timer's id
	lost                                        uint64
	guarded                                     int
}

// metrics keeps the publisher's counts.
type metrics struct {
	asides chan *schedule.Firing // set aside; dropped if nobody reads

	mu  sync.Mutex
	now counts
}

func newMetrics() *metrics {
	return &metrics{
		asides: make(chan *schedule.Firing, 10_000),
		now:    counts{failed: map[notify.Failure]int{}, late: map[string]notify.LateAction{}},
	}
}

// add changes the counts.
func (m *metrics) add(change func(*counts)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.now)
}

func (m *metrics) Fired(_ *schedule.Firing, lateness time.Duration, duplicate bool) {
	m.add(func(c *counts) {
		c.fired++
		if duplicate {
			c.duplicates++
		}
		if lateness < 0 {
			c.early++
		}
	})
}

func (m *metrics) Failed(class notify.Failure) { m.add(func(c *counts) { c.failed[class]++ }) }

func (m *metrics) Settled(n int) { m.add(func(c *counts) { c.settled += n }) }

func (m *metrics) Released(n int) { m.add(func(c *counts) { c.released += n }) }

func (m *metrics) Guarded(*schedule.Firing) { m.add(func(c *counts) { c.guarded++ }) }

func (m *metrics) Lost(n uint64) { m.add(func(c *counts) { c.lost += n }) }

func (m *metrics) Late(f *schedule.Firing, action notify.LateAction) {
	m.add(func(c *counts) {
		c.tooLate++
		c.late[f.Key.ID] = action
	})
}

func (m *metrics) SetAside(f *schedule.Firing, _ schedule.OutcomeKind) {
	select {
	case m.asides <- f:
	default:
	}
}

func (m *metrics) counts() counts {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now
	now.failed, now.late = maps.Clone(now.failed), maps.Clone(now.late)
	return now
}
