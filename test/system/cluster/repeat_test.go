package cluster_test

import (
	"fmt"
	"testing"
	"time"
)

// In a cluster, keys of many slots repeat.
func TestClusterRepetitions(t *testing.T) {
	t.Parallel()
	s := newClusterSystem(t, false, patient())
	p := s.Start()
	c := s.Collect()
	const n, times = 20, 3
	for i := range n {
		args := []any{"p", "EVERY", 300}
		if i%2 == 0 {
			args = []any{"p", "CRON", "* * * * * *"}
		}
		key := fmt.Sprintf("a:b:c:%d", i)
		s.try("set a timer that repeats", func() error {
			return s.client.FCall(t.Context(), "timer_repeat", []string{key}, append(args, "TIMES", times)...).Err()
		})
	}
	counts := map[string]int64{}
	for _, e := range s.Events(c, n*times) {
		counts[e.Key.ID]++
		if e.Occurrence != counts[e.Key.ID] {
			t.Errorf("event %d of %s is occurrence %d", counts[e.Key.ID], e.Key, e.Occurrence)
		}
	}
	s.emptied()
	c.Stays(n*times, 200*time.Millisecond)
	p.Stop()
}
