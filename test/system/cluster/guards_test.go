package cluster_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// guarded sets n timers of a hash tag that are due within a span of time, and returns the firings of every other one:
// the guards of the rest are there.
func (s *clusterSystem) guarded(tag string, n int, first, span time.Duration) (want []string) {
	s.T.Helper()
	ctx := s.T.Context()
	for i := range n {
		key, guard := fmt.Sprintf("load:{%s}:guarded:%d", tag, i), fmt.Sprintf("paid:{%s}:%d", tag, i)
		if i%2 == 0 {
			s.try("SET "+guard, func() error { return s.client.Set(ctx, guard, "", 0).Err() })
		} else {
			want = append(want, fmt.Sprintf("%s=%d", key, i))
		}
		in := first + time.Duration(i)*span/time.Duration(n)
		s.try("timer_set "+key, func() error {
			return s.client.FCall(ctx, "timer_set", []string{key}, i, "PX", in.Milliseconds(), "UNLESS", guard).Err()
		})
	}
	return want
}

// replicated waits until the replica of each first master has all earlier writes.
func (s *clusterSystem) replicated() {
	s.T.Helper()
	for i, node := range s.cluster.Nodes[:3] {
		conn := node.Client().Conn()
		key := "{" + tagsOf(i*keys.Slots/3+100, i*keys.Slots/3+101)[0] + "}"
		testenv.Eventually(s.T, system.Patience, func() error {
			if err := conn.Set(s.T.Context(), key, "", 0).Err(); err != nil {
				return err
			}
			n, err := conn.Do(s.T.Context(), "WAIT", 1, 1000).Int()
			if err == nil && n != 1 {
				err = fmt.Errorf("%d replicas of %s have it", n, node.Addr())
			}
			return err
		}, "replication")
		if err := conn.Close(); err != nil {
			s.T.Error(err)
		}
	}
}

// Slots move, a master is replaced in good order and one of two timerds is killed while guarded timers fire. None
// fires whose guard says no, and each other one once.
func TestClusterGuardsWhileSlotsMove(t *testing.T) {
	t.Parallel()
	const first, slots = 6000, 24
	s := newClusterSystem(t, true, patient())
	doomed, p := s.Start(), s.Start()
	c := s.Collect()
	var want []string
	for _, tag := range append(tagsOf(first, first+slots), tagsOf(100, 104)...) {
		want = append(want, s.guarded(tag, 8, 3*time.Second, 4*time.Second)...)
	}
	s.cluster.Failover(s.cluster.Nodes[3])
	from, to := s.cluster.Nodes[1], s.cluster.Nodes[2]
	for slot := first; slot < first+slots; slot++ {
		s.cluster.OpenSlot(slot, from, to)
		s.cluster.CloseSlot(slot, from, to)
		if slot == first+slots/2 {
			doomed.Kill()
		}
	}
	s.Expect(c, want...)
	s.emptied()
	c.Stays(len(want), 100*time.Millisecond)
	p.AwaitReady(true)
	p.Stop()
}

// A master is killed while guarded timers fire.
func TestClusterGuardsOfAKilledMaster(t *testing.T) {
	t.Parallel()
	s := newClusterSystem(t, true)
	p := s.Start()
	c := s.Collect()
	var want []string
	for i := range 3 {
		for _, tag := range tagsOf(i*keys.Slots/3+100, i*keys.Slots/3+108) {
			want = append(want, s.guarded(tag, 10, 3*time.Second, 4*time.Second)...)
		}
	}
	s.replicated()
	c.WaitFunc(system.Patience, system.AtLeast(len(want)/8))
	s.cluster.Nodes[1].Kill()
	s.Expect(c, want...)
	s.emptied()
	c.Stays(len(want), 100*time.Millisecond)
	p.AwaitReady(true)
	p.Stop()
}
