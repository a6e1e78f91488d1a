package notify

import (
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/lanes"
)

const (
	// batchEvents and batchBytes limit a batch: JetStream takes 1,000 messages by default, and larger batches take as
	// much time for each event. One faulty event delays its whole batch.
	batchEvents = 500
	batchBytes  = 1 << 20
	// batchPayload is the largest payload of an event in a batch. Larger ones may be refused for their size.
	batchPayload = 32 << 10
	// leastBatch is the lower bound of the size of batches after refusals.
	leastBatch = 2
	// batchRest is the time without batches after a batch that the server could not take.
	batchRest = time.Second
	// batchPatience limits the time for which the next batch waits for the batches with the server. A server that has
	// just lost the leadership answers nothing.
	batchPatience = time.Second
	// maxFlying limits the batches with the server: one while the next batch gathers, and a second one once that is
	// full. So the server is busy while the second one is written.
	maxFlying = 2
)

// Error codes of JetStream about batches.
const (
	codeIDInProcess    jetstream.ErrorCode = 10158
	codeBatchDisabled  jetstream.ErrorCode = 10174
	codeBatchTooLarge  jetstream.ErrorCode = 10199
	codeBatchDuplicate jetstream.ErrorCode = 10201
)

// noSample is a delivery's ahead if its acknowledgement does not measure the pace.
const noSample = -1

// group publishes events together if the stream takes long to store each of them, as it does when it syncs each to
// disk. While some events are with the server, the next ones gather. They are published as one atomic batch of
// JetStream, which is synced once. A lone event is published alone. So are all events if that is quicker, judged by the
// acknowledgements.
//
// JetStream stores a whole batch or nothing. So only events without a known obstacle gather: on trusted subjects, of
// ordinary size, and on their first try, so that the stream does not have them. If the server refuses a batch
// nevertheless, its events are published alone.
//
// Its methods may be called concurrently, also with flight.mu held.
type group struct {
	subjects *lanes.Window
	wake     chan struct{} // the flight has events to take

	mu       sync.Mutex
	allowed  bool              // the stream allows batches
	rest     time.Time         // no batches before this time
	most     int               // events in a batch
	largest  int               // payload in a batch, bytes
	out      int               // lone events with the server
	overdue  int               // lone events with the server whose wait is over
	flying   int               // batches with the server
	batches  map[uint64]*batch // by token, while an answer may come
	gathered []*delivery
	since    time.Time // arrival of the first gathered delivery, or the last publication
	pace     pacer
}

// pacer estimates which way is quicker; see pace.
type pacer interface {
	ackedAlone(ahead int, lone bool, d time.Duration, now time.Time)
	batch(n int, d time.Duration, now time.Time)
	room(out int) int
	split(n, room int, now time.Time) (alone, together int)
}

func newGroup(subjects *lanes.Window) *group {
	return &group{
		subjects: subjects, wake: make(chan struct{}, 1), most: batchEvents, largest: batchPayload,
		batches: map[uint64]*batch{}, pace: &pace{},
	}
}

// allow notes whether the stream takes batches.
func (g *group) allow(allowed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.allowed = allowed
	g.wakeIfReady()
}

// batching reports whether there may be a batch now; g.mu is held.
func (g *group) batching() bool { return g.allowed && (g.rest.IsZero() || time.Now().After(g.rest)) }

// gather reports whether a queued delivery waits to be published with others.
func (g *group) gather(d *delivery) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.batching() || len(g.gathered) == 0 && !g.busy() || len(d.firing.Payload) > g.largest {
		return false
	}
	if len(g.gathered) == 0 {
		g.since = time.Now()
	}
	g.gathered = append(g.gathered, d)
	g.wakeIfReady() // the gathered deliveries may be enough for another batch
	return true
}

// busy reports whether the gathered deliveries should wait for further ones; g.mu is held.
func (g *group) busy() bool {
	switch {
	case !g.batching():
		return false
	case g.flying > 0:
		return g.flying >= maxFlying || len(g.gathered) < g.most
	}
	return g.room() <= 0
}

// room returns the number of events to publish alone now; g.mu is held.
func (g *group) room() int { return g.pace.room(g.out - g.overdue) }

// sent counts an event that is published alone. It returns the number of the other events with the server, for
// acknowledged.
func (g *group) sent() (ahead int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.out++
	if g.flying > 0 {
		return noSample
	}
	return g.out - 1
}

// acknowledged records the latency d of an event sent alone behind ahead others.
func (g *group) acknowledged(ahead int, d time.Duration) {
	if ahead == noSample {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pace.ackedAlone(ahead, ahead == 0 && g.out == 1, d, time.Now())
}

// aloneDone notes that an event published alone is no longer with the server.
func (g *group) aloneDone() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.out--
	g.overdue = min(g.overdue, g.out)
	g.wakeIfReady()
}

// wakeIfReady wakes the flight if the gathered deliveries need not wait any longer; g.mu is held.
func (g *group) wakeIfReady() {
	if len(g.gathered) > 0 && !g.busy() {
		signal(g.wake)
	}
}

// find returns the batch of a token, or nil if the batch waits for no answer.
func (g *group) find(token uint64) *batch {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.batches[token]
}

// drop forgets a batch that waits for no answer any longer.
func (g *group) drop(b *batch) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.batches, b.token)
	g.markAnsweredLocked(b)
}

// committed notes that a batch was stored.
func (g *group) committed(b *batch) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := time.Now(); !b.answered {
		g.pace.batch(len(b.members), now.Sub(b.began), now)
	}
	g.markAnsweredLocked(b)
}

// refused takes the server's refusal of a batch. It reports whether the stream may have one of the events.
func (g *group) refused(a answer) (stored bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case a.code == codeBatchDuplicate || a.code == codeIDInProcess:
		return true
	case a.code == codeBatchDisabled:
		g.allowed = false
	case a.code == codeBatchTooLarge && g.most > leastBatch:
		g.most = max(g.most/2, leastBatch)
	default: // for example: it arrived incomplete, or the server has too many
		g.rest = time.Now().Add(batchRest)
	}
	return false
}

// expireOverdue ends the wait of the gathered deliveries for overdue answers.
func (g *group) expireOverdue(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, b := range g.batches {
		if now.Sub(b.began) > batchPatience {
			g.markAnsweredLocked(b)
		}
	}
	if len(g.gathered) > 0 && now.Sub(g.since) > batchPatience {
		g.since, g.overdue = now, g.out
		g.wakeIfReady()
	}
}

// tooLarge notes the size of a payload that makes an event too large for the stream.
func (g *group) tooLarge(bytes int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.largest = min(g.largest, bytes-1)
}

// markAnswered notes that the server, as far as known, no longer has a batch. A second call does nothing.
func (g *group) markAnswered(b *batch) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.markAnsweredLocked(b)
}

// markAnsweredLocked is markAnswered; g.mu is held.
func (g *group) markAnsweredLocked(b *batch) {
	if !b.answered {
		b.answered = true
		g.flying--
		g.wakeIfReady()
	}
}

// forget forgets the properties of a server after the connection was lost.
func (g *group) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pace, g.most, g.largest = &pace{}, batchEvents, batchPayload
	for _, b := range g.batches {
		g.markAnsweredLocked(b)
	}
}

// take removes and returns the gathered deliveries to publish now: some alone, and others as one batch with a token.
// Deliveries on subjects that are not trusted yet are published alone.
func (g *group) take(token uint64) (alone []*delivery, b *batch, together []*delivery) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.busy() {
		return nil, nil, nil
	}
	now, room, bytes := time.Now(), max(g.room(), 1), 0
	var trusted, wait []*delivery
	for i, d := range g.gathered {
		if len(trusted) == g.most || bytes >= batchBytes {
			wait = append(wait, g.gathered[i:]...)
			break
		}
		switch {
		case g.subjects.Trusts(d.lane):
			bytes += len(d.firing.Payload)
			trusted = append(trusted, d)
		case len(alone) < room:
			alone = append(alone, d)
		default:
			wait = append(wait, d)
		}
	}
	one, many := len(trusted), 0
	if g.batching() {
		one, many = g.pace.split(len(trusted), room, now)
	}
	alone, together = append(alone, trusted[:one]...), trusted[one:one+many]
	g.gathered, g.since = slices.Concat(trusted[one+many:], wait), now
	if len(together) > 0 {
		b = &batch{token: token, began: now}
		g.batches[b.token] = b
		g.flying++
	}
	g.wakeIfReady()
	return alone, b, together
}
