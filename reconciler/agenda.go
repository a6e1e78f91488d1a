package reconciler

import (
	"slices"
	"sync"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// standbyStep is the delay of each rank behind the rank before it. A rank claims timers that have been due for
	// about its delay: at most 40 times a second while the ranks before it do all the work.
	standbyStep = 25 * time.Millisecond
	// standbyLead shortens the wait of a standby by the uncertainty of the server's clock.
	standbyLead = 2 * time.Millisecond
	// claimBatch limits the partitions of one round trip of claims. Their firings may exceed the publisher's window.
	// The publisher takes the rest as it gets room.
	claimBatch = 32
	// movingPause is the pause before the next claim from a moving partition of a cluster.
	movingPause  = 100 * time.Millisecond
	longestSleep = time.Hour
)

// Server is one server of the schedule: its name, its partitions and its clock.
type Server interface {
	Name() string
	Owns(p keys.Partition) bool
	Now() schedule.Millis
	Until(at schedule.Millis) time.Duration
}

// agenda plans claims from the partitions of a server, among other timerds. Its methods may be called concurrently, and
// never block.
type agenda struct {
	server Server
	woken  chan struct{} // the next claim may have become earlier

	mu    sync.Mutex
	queue wakeQueue
	place int // number of the server in the cluster
	rank  int // of this timerd, for this server
	// passive means that two timerds of lower rank hear the server's events, so that this timerd does not. It then
	// claims only timers that two sweeps in a row find unclaimed.
	passive  bool
	sweptDue map[keys.Partition]schedule.Millis // due times found by sweeps, while passive
	// by partition: end of the first lease that claims do not find by themselves
	leases map[keys.Partition]schedule.Millis
}

func newAgenda(server Server) *agenda {
	return &agenda{
		server: server, woken: make(chan struct{}, 1), queue: newWakeQueue(),
		leases: map[keys.Partition]schedule.Millis{},
	}
}

// wake notes the due time of a partition's timer, or AtOnce or Nothing.
func (a *agenda) wake(p keys.Partition, due schedule.Millis) { a.noteDue(p, due, false) }

// armed is wake for a timer that this timerd has set. In a cluster a passive timerd notes it too: if no message reaches
// the other timerds, they may take longer than a sweep to find the timer.
func (a *agenda) armed(p keys.Partition, due schedule.Millis) {
	a.noteDue(p, due, a.server.Name() != "")
}

// noteDue notes a due time. If this timerd is passive, it does so only with always set.
func (a *agenda) noteDue(p keys.Partition, due schedule.Millis, always bool) {
	if due < 0 || !a.server.Owns(p) {
		return
	}
	a.mu.Lock()
	earlier := (always || !a.passive) && a.learn(p, due)
	a.mu.Unlock()
	if earlier {
		signal(a.woken)
	}
}

// swept notes the result of a sweep. patient means that the next sweep comes within a lease.
func (a *agenda) swept(scan schedule.DueScan, patient bool) {
	heads := scan.Heads
	a.mu.Lock()
	for _, l := range scan.Leases {
		a.leases[l.Partition] = l.Due
	}
	if a.passive && patient {
		heads = a.unclaimed(heads)
	}
	for _, h := range heads {
		if h.Due != schedule.AtOnce && a.server.Until(h.Due) > 0 {
			a.learn(h.Partition, h.Due)
		} else {
			a.queue.plan(h.Partition, schedule.AtOnce)
		}
	}
	a.mu.Unlock()
	signal(a.woken)
}

// unclaimed returns the heads that the previous sweep has found too. It keeps the due heads for the next sweep. a.mu is
// held.
func (a *agenda) unclaimed(heads []schedule.Head) (again []schedule.Head) {
	if a.sweptDue == nil {
		a.sweptDue = map[keys.Partition]schedule.Millis{}
	}
	for _, h := range heads {
		if h.Due != schedule.AtOnce && a.server.Until(h.Due) > 0 {
			continue
		}
		before, ok := a.sweptDue[h.Partition]
		a.sweptDue[h.Partition] = h.Due
		if ok && before == h.Due {
			again = append(again, h)
		}
	}
	return again
}

// setPlace sets the number of this server in the cluster. Each server has a different timerd as its first.
func (a *agenda) setPlace(place int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.place = place
}

// before returns the rank of a living timerd for this server, and the number of timerds of lower rank that hear the
// server's events. Among the timerds able to publish, each server has a different one as its first. If fewer clients
// are subscribed than timerds claim to hear, the missing ones count as lower in rank.
func (a *agenda) before(id string, s schedule.Standing, h schedule.Hearing) (rank, hearing int) {
	a.mu.Lock()
	place := a.place
	a.mu.Unlock()
	rankOf := func(id string) int {
		switch i := slices.Index(s.Alive, id); {
		case i < 0:
			return len(s.Alive)
		case i < s.Able:
			return (i + place) % s.Able
		default:
			return i
		}
	}
	if slices.Contains(s.Alive, id) {
		rank = rankOf(id)
	}
	for _, other := range h.IDs {
		if at := slices.Index(s.Alive, other); at >= 0 && at < s.Able && rankOf(other) < rank {
			hearing++
		}
	}
	if h.Subscribed >= 0 {
		hearing = max(hearing-max(len(h.IDs)-h.Subscribed, 0), 0)
	}
	return rank, hearing
}

// setRank sets the rank of this timerd for this server, and whether this timerd is passive. A lower rank claims known
// due times earlier.
func (a *agenda) setRank(rank int, passive bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.rank
	a.rank, a.passive = rank, passive
	if rank < before {
		a.queue.planKnown(a.delay())
		signal(a.woken)
	}
	if !passive {
		a.sweptDue = nil
	}
}

// isPassive reports whether this timerd leaves the server to two others.
func (a *agenda) isPassive() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.passive
}

// isFirst reports whether this timerd is the first to claim from the server.
func (a *agenda) isFirst() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rank == 0
}

// learn notes a due time. It reports whether the next claim from any partition has become earlier. a.mu is held.
func (a *agenda) learn(p keys.Partition, due schedule.Millis) bool {
	if !a.queue.learn(p, due) {
		// In a cluster the timer may have been set after a claim whose message is still unread: answers do not wait for
		// messages. Then only the planned visit finds the timer.
		if a.server.Name() != "" && a.server.Until(a.queue.known[p]) <= standbyStep {
			a.queue.keep(p)
		}
		return false
	}
	at := due
	if due > schedule.AtOnce {
		at = at.Add(a.delay())
	}
	return a.queue.plan(p, at)
}

// delay returns the delay of this timerd behind the first timerd. a.mu is held.
func (a *agenda) delay() time.Duration { return time.Duration(a.rank) * standbyStep }

// patience returns the time for which due timers are left to the lower ranks. a.mu is held.
func (a *agenda) patience() time.Duration { return max(a.delay()-standbyLead, 0) }

// wait returns the time until the next claim.
func (a *agenda) wait() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.until()
}

// until is wait; a.mu is held.
func (a *agenda) until() time.Duration {
	at := a.queue.next()
	if at == schedule.Never {
		return longestSleep
	}
	return min(a.server.Until(at), longestSleep)
}

// takeDue removes and returns up to claimBatch partitions that are due. expected is the number of firings that a claim
// may bring.
func (a *agenda) takeDue(expected int) []schedule.ClaimRequest {
	a.mu.Lock()
	defer a.mu.Unlock()
	var requests []schedule.ClaimRequest
	for len(requests) < claimBatch && a.until() <= 0 {
		p, known := a.queue.take()
		if a.server.Owns(p) {
			ends, leased := a.leases[p]
			requests = append(requests, schedule.ClaimRequest{
				Partition: p, Known: known, Expected: expected, Patience: a.patience(),
				Leases: leased && a.server.Until(ends) <= 0,
			})
		}
	}
	return requests
}

// claimed notes the result of a claim, and reports whether there was more to claim.
func (a *agenda) claimed(result *schedule.ClaimResult) (more bool) {
	now := schedule.MillisOf(result.At)
	a.mu.Lock()
	defer a.mu.Unlock()
	more = result.Untidy || result.Next != schedule.Nothing && result.Next.Add(a.patience()) <= now
	if result.Next != schedule.Nothing && (!a.passive || len(result.Firings) > 0) {
		a.learn(result.Partition, result.Next)
	}
	a.noteLeases(result, now)
	if more {
		a.queue.plan(result.Partition, now)
	}
	return more
}

// peerClaimed notes a claim by any timerd, with its time and the next due time, or Nothing. This timerd then forgets
// the due times up to the claim, unless it is the first timerd: then the claim was its own, or it does not rely on
// other timerds.
func (a *agenda) peerClaimed(p keys.Partition, at, next schedule.Millis) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.rank == 0 || a.passive || !a.queue.forget(p, min(at, a.server.Now())) {
		return
	}
	if ends, leased := a.leases[p]; leased {
		a.learn(p, ends)
	}
	if next != schedule.Nothing && a.learn(p, next) {
		signal(a.woken)
	}
}

// noteLeases notes the next lease of a partition that needs a look, after a claim. a.mu is held.
func (a *agenda) noteLeases(result *schedule.ClaimResult, now schedule.Millis) {
	p := result.Partition
	ends, leased := a.leases[p]
	switch {
	case result.Full && result.Next != schedule.Nothing:
		a.leases[p] = result.Next
	case leased && ends <= now:
		delete(a.leases, p)
	case leased && !a.passive:
		a.learn(p, ends)
	}
}

// putBack plans a claim from a partition again after a failed one: at once, unless the partition is moving.
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
