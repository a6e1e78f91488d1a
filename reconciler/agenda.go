package reconciler

import (
	"sync"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// standbyStep is how much later each rank wakes than the one before it.
	standbyStep = 5 * time.Millisecond
	// claimBatch is how many partitions one round trip claims from: what they bring
	// may exceed the publisher's window, which takes the rest as it gets room.
	claimBatch = 32
	// movingPause is the pause before the next claim from a partition that is moving
	// from one server of a cluster to another.
	movingPause  = 100 * time.Millisecond
	longestSleep = time.Hour
)

// Server is one server of the schedule: which it is, and what time it has.
type Server interface {
	Name() string
	Owns(p keys.Partition) bool
	Now() schedule.Millis
	Until(at schedule.Millis) time.Duration
}

// agenda is when to claim from which partition of a server, among other timerds that do so too. Its methods may be called
// concurrently, and never block.
type agenda struct {
	server Server
	woken  chan struct{} // the next claim may be earlier than it was

	mu       sync.Mutex
	queue    wakeQueue
	rank, of int // among the timerds
}

func newAgenda(server Server) *agenda {
	return &agenda{server: server, woken: make(chan struct{}, 1), queue: newWakeQueue(), of: 1}
}

// wake notes that a timer of a partition is due at a time, AtOnce or Nothing.
func (a *agenda) wake(p keys.Partition, due schedule.Millis) {
	if due < 0 || !a.server.Owns(p) {
		return
	}
	a.mu.Lock()
	earlier := a.learn(p, due)
	a.mu.Unlock()
	if earlier {
		signal(a.woken)
	}
}

// found notes what a scan for due timers has found.
func (a *agenda) found(heads []schedule.Head) {
	a.mu.Lock()
	for _, h := range heads {
		if h.Due != schedule.AtOnce && a.server.Until(h.Due) > 0 {
			a.learn(h.Partition, h.Due)
		} else {
			a.queue.plan(h.Partition, schedule.Millis(a.standby(h.Partition)))
		}
	}
	a.mu.Unlock()
	signal(a.woken)
}

// setRank notes which of the living timerds this one is.
func (a *agenda) setRank(rank, of int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rank, a.of = rank, max(of, 1)
}

// learn notes a due time. It returns whether the next claim of all has become earlier. a.mu is held.
func (a *agenda) learn(p keys.Partition, due schedule.Millis) bool {
	if !a.queue.learn(p, due) {
		return false
	}
	at := due
	if due > schedule.AtOnce {
		at = at.Add(time.Duration(a.standby(p)) * standbyStep)
	}
	return a.queue.plan(p, at)
}

// standby returns how many other timerds are to claim from a partition before this
// one. Each is first for its share of the partitions. a.mu is held.
func (a *agenda) standby(p keys.Partition) int {
	if p == keys.Single {
		return a.rank
	}
	return (a.rank + p.Slot()) % a.of
}

// wait returns how long it is until the next claim.
func (a *agenda) wait() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.until()
}

// until returns how long it is until the next claim. a.mu is held.
func (a *agenda) until() time.Duration {
	at := a.queue.next()
	if at == schedule.Never {
		return longestSleep
	}
	return min(a.server.Until(at), longestSleep)
}

// takeDue takes out up to claimBatch partitions whose time has come. expected is how many firings a claim may bring.
func (a *agenda) takeDue(expected int) []schedule.ClaimRequest {
	a.mu.Lock()
	defer a.mu.Unlock()
	var requests []schedule.ClaimRequest
	for len(requests) < claimBatch && a.until() <= 0 {
		p, known := a.queue.take()
		if a.server.Owns(p) {
			requests = append(requests, schedule.ClaimRequest{Partition: p, Known: known, Expected: expected})
		}
	}
	return requests
}

// claimed notes the result of a claim, and returns whether there was more to claim.
func (a *agenda) claimed(result *schedule.ClaimResult) (more bool) {
	now := schedule.MillisOf(result.At)
	more = result.Untidy || result.Next != schedule.Nothing && result.Next <= now
	a.mu.Lock()
	defer a.mu.Unlock()
	if result.Next != schedule.Nothing {
		a.learn(result.Partition, result.Next)
	}
	if more {
		a.queue.plan(result.Partition, now)
	}
	return more
}

// putBack puts back a partition that could not be claimed from: for at once, unless it is moving.
func (a *agenda) putBack(request schedule.ClaimRequest, moving bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if request.Known != schedule.Never {
		a.queue.learn(request.Partition, request.Known)
	}
	at := schedule.AtOnce
	if moving {
		at = a.server.Now().Add(movingPause)
	}
	a.queue.plan(request.Partition, at)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
