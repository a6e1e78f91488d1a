package notify

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// settleBatch limits the firings settled in one call: enough to share the fixed cost of the call, few enough not to
	// hold Redis for long.
	settleBatch = 256
	// settleBytes limits the payload bytes settled in one call, approximately: Redis takes some 50 µs to free the
	// largest payload.
	settleBytes = 4 << 20
	// settleDelay is the time for which acknowledged firings wait, to be settled with others. It delays no event.
	settleDelay = 20 * time.Millisecond
	// callTimeout bounds one call to the schedule.
	callTimeout = 5 * time.Second

	firstSettlePause   = 50 * time.Millisecond
	longestSettlePause = 2 * time.Second
	// longestRest is the idle time after which a worker ends.
	longestRest = time.Hour
)

// Settler records the outcomes of firings: a schedule.Schedule. The outcomes of one call may be of several partitions,
// but, as far as known, of one server.
type Settler interface {
	// ServerOf returns the name of a partition's server, as far as known; "" if there is only one server. It answers
	// from memory.
	ServerOf(p keys.Partition) string
	// Settle forgets firings. It must be safe to repeat.
	Settle(ctx context.Context, outcomes []schedule.Outcome) error
	// Release gives claims back, so that any timerd may claim them again.
	Release(ctx context.Context, outcomes []schedule.Outcome) error
}

// settler settles acknowledged firings and gives other firings back. Each server of the schedule has a queue and a
// worker, so that a silent server does not delay the others. Its methods may be called concurrently; only run waits for
// a server.
//
// Settling is tried until it works; until then the firings may be published again, under the same ids. Giving back is
// tried once, because the end of the lease has the same effect.
type settler struct {
	*Options
	schedule Settler
	gate     *gate // announces room, without the lock, when firings have left

	wake chan struct{} // wakes run

	mu      sync.Mutex
	queues  map[string]*queue // by server
	waiting int               // firings in all queues
	closing bool
}

// queue has the outcomes to record on one server. settler.mu guards it, except for wake.
type queue struct {
	wake     chan struct{} // wakes its worker
	worked   bool          // it has a worker
	settles  []schedule.Outcome
	releases []schedule.Outcome
	since    time.Time // arrival of the first of settles
	waiting  int       // firings in the queue and with its worker
}

func newSettler(o *Options, s Settler, g *gate) *settler {
	return &settler{Options: o, schedule: s, gate: g, wake: make(chan struct{}, 1), queues: map[string]*queue{}}
}

// settle queues a firing to be settled.
func (s *settler) settle(o schedule.Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queueOf(&o).addSettle(o)
	s.waiting++
}

// giveBack queues a firing to be given back.
func (s *settler) giveBack(o schedule.Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queueOf(&o).addRelease(o)
	s.waiting++
}

// queueOf returns the queue of the server that has a firing now. s.mu is held.
func (s *settler) queueOf(o *schedule.Outcome) *queue {
	server := s.schedule.ServerOf(o.Partition())
	q := s.queues[server]
	if q == nil {
		q = &queue{wake: make(chan struct{}, 1)}
		s.queues[server] = q
		signal(s.wake)
	}
	return q
}

func (q *queue) addSettle(o schedule.Outcome) {
	q.waiting++
	q.settles = append(q.settles, o)
	switch len(q.settles) {
	case 1:
		q.since = time.Now()
		signal(q.wake)
	case settleBatch:
		signal(q.wake)
	}
}

func (q *queue) addRelease(o schedule.Outcome) {
	q.waiting++
	q.releases = append(q.releases, o)
	signal(q.wake)
}

// next removes and returns the outcomes to record now. If there are none, wait is the time to rest unless woken. hurry
// means that no outcome waits for others.
func (q *queue) next(hurry bool) (releases, settles []schedule.Outcome, wait time.Duration) {
	releases, q.releases = q.releases, nil
	wait = settleDelay - time.Since(q.since)
	if n := len(q.settles); n == 0 {
		wait = longestRest
	} else if n >= settleBatch || wait <= 0 || hurry {
		n = fitting(q.settles[:min(n, settleBatch)])
		settles, q.settles = q.settles[:n:n], q.settles[n:]
	}
	return releases, settles, wait
}

// fitting returns the number of outcomes for one call, at least one.
func fitting(outcomes []schedule.Outcome) int {
	bytes := 0
	for i := range outcomes {
		if bytes += outcomes[i].Bytes(); bytes > settleBytes {
			return max(i, 1)
		}
	}
	return len(outcomes)
}

// inHand returns the number of waiting firings of all servers, and of one.
func (s *settler) inHand(server string) (all, there int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.queues[server]; q != nil {
		there = q.waiting
	}
	return s.waiting, there
}

// finish makes run end once no firing waits any more.
func (s *settler) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	for _, q := range s.queues {
		signal(q.wake)
	}
	signal(s.wake)
}

// run works until finish was called and no firing waits, or until ctx ends.
func (s *settler) run(ctx context.Context) {
	var workers sync.WaitGroup
	defer workers.Wait()
	for {
		s.mu.Lock()
		for server, q := range s.queues {
			if !q.worked {
				q.worked = true
				workers.Go(func() { s.work(ctx, server, q) })
			}
		}
		over := s.closing && s.waiting == 0
		s.mu.Unlock()
		if over {
			return
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return
		}
	}
}

// work works off the queue of a server.
func (s *settler) work(ctx context.Context, server string, q *queue) {
	logger := s.Logger
	if server != "" {
		logger = logger.With("redis", server)
	}
	policy := backoff.Policy{First: firstSettlePause, Longest: longestSettlePause}
	failing := backoff.Backoff{Policy: policy, Logger: logger}
	rested := false
	for {
		s.mu.Lock()
		releases, settles, wait := q.next(s.closing || s.SettleAtOnce)
		idle := q.waiting == 0
		if idle && (s.closing || rested) {
			delete(s.queues, server)
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		if len(releases) > 0 {
			s.release(ctx, releases)
			s.left(q, len(releases))
		}
		wake := q.wake
		if len(settles) > 0 {
			if err := s.settleBatch(ctx, q, settles); err != nil {
				wait, wake = failing.Fail("cannot settle published firings, trying until it works", err, "count",
					len(settles)), nil
				if _, some := errors.AsType[*schedule.PartError](err); some {
					wait = firstSettlePause // one slot does not delay the others
				}
			} else if after := failing.Succeed(); after > 0 {
				logger.Info("settling works again", "after", after.Round(time.Millisecond))
			}
		}
		if wake != nil && len(releases)+len(settles) > 0 {
			continue
		}
		timer := time.NewTimer(wait)
		rested = false
		select {
		case <-wake:
		case <-timer.C:
			rested = idle
		case <-ctx.Done():
			if _, there := s.inHand(server); there > 0 {
				logger.Warn("ended with published firings not settled: they may be published again under the same ids",
					"count", there)
			}
			return
		}
		timer.Stop()
	}
}

// settleBatch settles firings of a queue. After a failure they wait again, in the queue of the server that has them
// then.
func (s *settler) settleBatch(ctx context.Context, q *queue, outcomes []schedule.Outcome) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := s.schedule.Settle(ctx, outcomes)
	var again []schedule.Outcome
	if err != nil {
		again = outcomes
		if part, ok := errors.AsType[*schedule.PartError](err); ok {
			again = part.Left
		}
		s.mu.Lock()
		for i := range again {
			q.waiting--
			s.queueOf(&again[i]).addSettle(again[i])
		}
		s.mu.Unlock()
	}
	if settled := len(outcomes) - len(again); settled > 0 {
		s.left(q, settled)
		s.Metrics.Settled(settled)
	}
	return err
}

// release gives firings back to the schedule. A failure is only logged.
func (s *settler) release(ctx context.Context, outcomes []schedule.Outcome) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := s.schedule.Release(ctx, outcomes); err != nil {
		s.Logger.Warn("firings could not be given back; they can be claimed again when their leases are over",
			"count", len(outcomes), "err", err)
		return
	}
	s.Metrics.Released(len(outcomes))
}

// left takes n firings of a queue out of the counts.
func (s *settler) left(q *queue, n int) {
	s.mu.Lock()
	q.waiting -= n
	s.waiting -= n
	if s.closing && s.waiting == 0 {
		signal(s.wake)
	}
	s.mu.Unlock()
	s.gate.announce()
}

// signal sends on a channel with a buffer of one, without waiting.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
