package notify

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

func TestLargePayloadsAreSettledFewAtATime(t *testing.T) {
	t.Parallel()
	q := queue{wake: make(chan struct{}, 1)}
	large := make([]byte, settleBytes/2)
	for _, payload := range [][]byte{large, large, large, make([]byte, 2*settleBytes), nil, {1}} {
		f := schedule.Firing{Payload: payload}
		q.addSettle(f.Outcome(schedule.OutcomeFired))
	}
	for i, want := range []int{2, 1, 1, 2, 0} {
		if _, settles, _ := q.next(true); len(settles) != want {
			t.Errorf("call %d settles %d firings, want %d", i+1, len(settles), want)
		}
	}
}

// twoServers is a Settler with partitions on two servers, a and b. Each server may be silent.
type twoServers struct {
	mu     sync.Mutex
	silent map[string]bool
	moved  map[keys.Partition]string
	calls  map[string]int
	gone   map[string]int // the number of times a ref was settled or given back
}

func newTwoServers() *twoServers {
	return &twoServers{silent: map[string]bool{}, moved: map[keys.Partition]string{}, calls: map[string]int{},
		gone: map[string]int{}}
}

func (s *twoServers) ServerOf(p keys.Partition) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if server, ok := s.moved[p]; ok {
		return server
	}
	return string(p[:1])
}

func (s *twoServers) Settle(ctx context.Context, outcomes []schedule.Outcome) error {
	server := s.ServerOf(outcomes[0].Partition())
	s.mu.Lock()
	s.calls[server]++
	silent := s.silent[server]
	s.mu.Unlock()
	if silent {
		<-ctx.Done()
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range outcomes {
		s.gone[o.Ref]++
	}
	return nil
}

func (s *twoServers) Release(ctx context.Context, outcomes []schedule.Outcome) error {
	return s.Settle(ctx, outcomes)
}

func (s *twoServers) setSilent(server string, silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent[server] = silent
}

func (s *twoServers) isGone(ref string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone[ref] == 1
}

func newTestSettler(servers *twoServers) *settler {
	o := defaultOptions()
	return newSettler(&o, servers, newGate())
}

// runSettler runs a settler until the end of a test in a bubble.
func runSettler(t *testing.T, servers *twoServers) (s *settler, end func()) {
	s = newTestSettler(servers)
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	running.Go(func() { s.run(ctx) })
	return s, func() {
		s.finish()
		running.Wait()
		cancel()
	}
}

func on(partition keys.Partition, ref string) schedule.Outcome {
	f := schedule.Firing{Partition: partition, Ref: ref}
	return f.Outcome(schedule.OutcomeFired)
}

// A silent server delays no firing of another server, whatever came first, and takes none of its room.
func TestASilentServerHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		servers := newTwoServers()
		servers.setSilent("a", true)
		s, end := runSettler(t, servers)
		for i := range 3 * settleBatch {
			s.settle(on("a1", fmt.Sprint("silent ", i)))
		}
		s.giveBack(on("a1", "silent, given back"))
		time.Sleep(time.Second)
		for i := range 100 {
			settled, returned := fmt.Sprint("settled ", i), fmt.Sprint("given back ", i)
			s.settle(on("b1", settled))
			s.giveBack(on("b2", returned))
			time.Sleep(settleDelay + time.Millisecond)
			if !servers.isGone(settled) || !servers.isGone(returned) {
				t.Fatalf("%s or %s waits after %v", settled, returned, settleDelay)
			}
			if _, there := s.inHand("b"); there != 0 {
				t.Fatalf("%d wait for the server that answers", there)
			}
		}
		servers.setSilent("a", false)
		end()
		if all, _ := s.inHand(""); all != 0 {
			t.Errorf("%d wait in the end", all)
		}
		for i := range 3 * settleBatch {
			if ref := fmt.Sprint("silent ", i); !servers.isGone(ref) {
				t.Errorf("%s was settled %d times", ref, servers.gone[ref])
			}
		}
	})
}

// After a failover the firings of a silent server are settled on its successor.
func TestSettledWhereTheSlotIs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		servers := newTwoServers()
		servers.setSilent("a", true)
		s, end := runSettler(t, servers)
		s.settle(on("a1", "moved"))
		s.settle(on("a2", "stays"))
		time.Sleep(time.Second)
		servers.mu.Lock()
		servers.moved["a1"] = "b"
		servers.mu.Unlock()
		time.Sleep(callTimeout + longestSettlePause)
		if all, there := s.inHand("a"); !servers.isGone("moved") || all != 1 || there != 1 {
			t.Errorf("moved: %v; %d wait, %d of them for a", servers.isGone("moved"), all, there)
		}
		servers.setSilent("a", false)
		end()
		if !servers.isGone("stays") {
			t.Error("what stayed was not settled")
		}
	})
}

// Workers end with their context, and those without work after a while.
func TestSettlersEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		servers := newTwoServers()
		s, end := runSettler(t, servers)
		s.settle(on("a1", "1"))
		time.Sleep(3 * longestRest)
		s.mu.Lock()
		if len(s.queues) != 0 {
			t.Errorf("%d queues are left", len(s.queues))
		}
		s.mu.Unlock()
		s.settle(on("a1", "2"))
		end()
		if !servers.isGone("1") || !servers.isGone("2") {
			t.Errorf("settled: %v", servers.gone)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		servers := newTwoServers()
		servers.setSilent("a", true)
		s := newTestSettler(servers)
		var running sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		running.Go(func() { s.run(ctx) })
		s.settle(on("a1", "1"))
		time.Sleep(time.Second)
		s.finish()
		cancel()
		running.Wait()
	})
}
