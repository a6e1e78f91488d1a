package reconciler

import (
	"slices"
	"sync"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// standbyStep is how much later each rank wakes than the one before it, and claims only what has been due for about as long: it looks
	// 40 times a second at most where the one before it does all.
	standbyStep = 25 * time.Millisecond
	// early is by how much less a standby waits: the clock of the server is not known better.
	early = 2 * time.Millisecond
	// claimBatch is how many partitions one round trip claims from: what they bring
	// may exceed the publisher's window, which takes the rest as it gets room.
	claimBatch = 32
	// movingPause is the pause before the next claim from a partition that is moving
	// from one server of a cluster to another.
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

// agenda is when to claim from which partition of a server, among other timerds that do so too. Its methods may be called
// concurrently, and never block.
type agenda struct {
	server Server
	woken  chan struct{} // the next claim may be earlier than it was

	mu    sync.Mutex
	queue wakeQueue
	place int // of the server among those of the cluster
	rank  int // among the timerds, for this server
	// passive says that two timerds before this one hear, so that this one does not: it claims only what it finds unclaimed in two
	// sweeps in a row.
	passive bool
	swept   map[keys.Partition]schedule.Millis // what sweeps found to be due, while passive
	leases  map[keys.Partition]schedule.Millis // when the first lease of a partition ends that claims do not look for by themselves
}

func newAgenda(server Server) *agenda {
	return &agenda{server: server, woken: make(chan struct{}, 1), queue: newWakeQueue(), leases: map[keys.Partition]schedule.Millis{}}
}

// wake notes that a timer of a partition is due at a time, AtOnce or Nothing.
func (a *agenda) wake(p keys.Partition, due schedule.Millis) { a.note(p, due, false) }

// armed is wake for what this timerd has set itself. In a cluster it is noted by a passive one, too: should no message reach the others,
// it may take them longer than a sweep to find it.
func (a *agenda) armed(p keys.Partition, due schedule.Millis) { a.note(p, due, a.server.Name() != "") }

// note notes a due time, by a passive timerd only if it is to be.
func (a *agenda) note(p keys.Partition, due schedule.Millis, always bool) {
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

// found notes what a scan for due timers has found. patient says that the next one comes within a lease.
func (a *agenda) found(scan schedule.DueScan, patient bool) {
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

// unclaimed returns those of what a sweep has found that one has found before, and keeps what is due now. a.mu is held.
func (a *agenda) unclaimed(heads []schedule.Head) (again []schedule.Head) {
	if a.swept == nil {
		a.swept = map[keys.Partition]schedule.Millis{}
	}
	for _, h := range heads {
		if h.Due != schedule.AtOnce && a.server.Until(h.Due) > 0 {
			continue
		}
		before, ok := a.swept[h.Partition]
		a.swept[h.Partition] = h.Due
		if ok && before == h.Due {
			again = append(again, h)
		}
	}
	return again
}

// setPlace notes which of the servers of a cluster this one is. Each has another timerd as its first.
func (a *agenda) setPlace(place int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.place = place
}

// before returns the rank of a living timerd for this server, and how many timerds of a lower rank hear it. Each server has another
// one as its first, among the timerds able to publish. If fewer are subscribed than hear by their own account, the missing ones
// count as lower in rank.
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

// setRank notes which of the living timerds this one is for this server, and whether it is passive. What it knows to be due it claims
// accordingly: earlier, if one before it is gone.
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
		a.swept = nil
	}
}

// isPassive tells whether this timerd leaves the server to two others.
func (a *agenda) isPassive() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.passive
}

// isFirst tells whether this timerd is the first of all to claim from the server.
func (a *agenda) isFirst() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rank == 0
}

// learn notes a due time. It returns whether the next claim of all has become earlier. a.mu is held.
func (a *agenda) learn(p keys.Partition, due schedule.Millis) bool {
	if !a.queue.learn(p, due) {
		// In a cluster it may have come into the schedule after a claim of what is known, of which the message is still to be read:
		// answers do not wait for messages. Then nothing but the visit tells of it.
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

// delay returns how much later this timerd wakes than the first. a.mu is held.
func (a *agenda) delay() time.Duration { return time.Duration(a.rank) * standbyStep }

// patience returns for how long what is due is left to those before this timerd. a.mu is held.
func (a *agenda) patience() time.Duration { return max(a.delay()-early, 0) }

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
			ends, leased := a.leases[p]
			requests = append(requests, schedule.ClaimRequest{
				Partition: p, Known: known, Expected: expected, Patience: a.patience(), Leases: leased && a.server.Until(ends) <= 0,
			})
		}
	}
	return requests
}

// claimed notes the result of a claim, and returns whether there was more to claim.
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

// claimedBy notes that some timerd claimed at a time from a partition, and when something is to be claimed there next, or Nothing. What
// this one knew to be due by then need not be looked for, unless it is the first: then it was the one, or does not rely on others.
func (a *agenda) claimedBy(p keys.Partition, at, next schedule.Millis) {
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

// noteLeases notes which lease of a partition is to be looked for next, after a claim. a.mu is held.
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
