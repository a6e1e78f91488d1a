package notify

import (
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/lanes"
)

const (
	// batchEvents and batchBytes bound a batch: JetStream takes 1,000 messages by default, and larger ones than these are no
	// quicker by the event. A batch is what a neighbour's fault delays.
	batchEvents = 500
	batchBytes  = 1 << 20
	// batchPayload is the largest payload of an event in a batch: larger ones may be refused for their size.
	batchPayload = 32 << 10
	// leastBatch is the fewest events to which refusals bring a batch down.
	leastBatch = 2
	// batchRest is how long there are no batches after one that the server could not take.
	batchRest = time.Second
	// batchPatience is how long those that gather wait at most for those before them. The server says nothing to what it gets when it has
	// just ceased to be the leader.
	batchPatience = time.Second
	// maxFlying is how many batches are with the server at most: one while the next gathers, and another if that is a full one, so that
	// the server has something to do while it is written.
	maxFlying = 2
)

// Error codes of JetStream about batches.
const (
	codeIDInProcess    jetstream.ErrorCode = 10158
	codeBatchDisabled  jetstream.ErrorCode = 10174
	codeBatchTooLarge  jetstream.ErrorCode = 10199
	codeBatchDuplicate jetstream.ErrorCode = 10201
)

// noSample says of a delivery's ahead that its acknowledgement does not tell what those ahead of it took.
const noSample = -1

// group commits events together where the stream takes long to store each, as it does when it syncs them to disk one by one: while
// some are with the server the next gather, and are published as one of JetStream's atomic batches, which is synced once. What
// comes alone is published alone, and so is everything where that is quicker, which the acknowledgements tell.
//
// A batch is all or nothing. So only those gather that nothing speaks against: their subject is trusted, they are of ordinary size,
// and this is their first try, so that the stream has not got them. If the server refuses a batch nevertheless, its events are
// published alone.
//
// Its methods may be called concurrently, also with flight.mu held.
type group struct {
	subjects *lanes.Window
	wake     chan struct{} // the flight has events to take

	mu       sync.Mutex
	allowed  bool              // by the stream
	rest     time.Time         // until then there are no batches
	most     int               // events in a batch
	largest  int               // payload of an event in a batch
	out      int               // events with the server, each by itself
	late     int               // of these, how many nobody waits for any longer
	flying   int               // batches with the server
	batches  map[uint64]*batch // by token: those that may still be answered
	gathered []*delivery
	since    time.Time // when the first of gathered came, or others were published
	pace     pacer
}

// pacer reckons which way is quicker; see pace.
type pacer interface {
	one(ahead int, lone bool, d time.Duration, now time.Time)
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

// allow takes whether the stream takes batches.
func (g *group) allow(allowed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.allowed = allowed
	g.goOn()
}

// batching reports whether there may be a batch now; g.mu is held.
func (g *group) batching() bool { return g.allowed && (g.rest.IsZero() || time.Now().After(g.rest)) }

// gather reports whether a queued delivery is published with others, which it then waits for.
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
	g.goOn() // these may be enough for another batch
	return true
}

// busy reports whether those that gather had better wait for more; g.mu is held.
func (g *group) busy() bool {
	switch {
	case !g.batching():
		return false
	case g.flying > 0:
		return g.flying >= maxFlying || len(g.gathered) < g.most
	}
	return g.room() <= 0
}

// room returns how many more events to publish one by one now; g.mu is held.
func (g *group) room() int { return g.pace.room(g.out - g.late) }

// sent counts an event that is published by itself, and returns how many others are with the server, for its acknowledged.
func (g *group) sent() (ahead int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.out++
	if g.flying > 0 {
		return noSample
	}
	return g.out - 1
}

// acknowledged takes how long the acknowledgement took of an event that was published by itself, with so many ahead of it.
func (g *group) acknowledged(ahead int, d time.Duration) {
	if ahead == noSample {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pace.one(ahead, ahead == 0 && g.out == 1, d, time.Now())
}

// left counts out an event that was published by itself.
func (g *group) left() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.out--
	g.late = min(g.late, g.out)
	g.goOn()
}

// goOn wakes run if those that gathered need not wait any longer; g.mu is held.
func (g *group) goOn() {
	if len(g.gathered) > 0 && !g.busy() {
		signal(g.wake)
	}
}

// find returns the batch of a token, or nil if there is none that may be answered.
func (g *group) find(token uint64) *batch {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.batches[token]
}

// drop forgets a batch that nobody waits for any longer.
func (g *group) drop(b *batch) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.batches, b.token)
	g.end(b)
}

// committed notes that a batch was stored.
func (g *group) committed(b *batch) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := time.Now(); !b.over {
		g.pace.batch(len(b.members), now.Sub(b.began), now)
	}
	g.end(b)
}

// refused takes why the server has refused a batch, and reports whether one of its events may be stored.
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
	default: // it did not arrive whole, say, or the server has too many
		g.rest = time.Now().Add(batchRest)
	}
	return false
}

// hurry has those that gather wait no longer for what takes too long.
func (g *group) hurry(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, b := range g.batches {
		if now.Sub(b.began) > batchPatience {
			g.end(b)
		}
	}
	if len(g.gathered) > 0 && now.Sub(g.since) > batchPatience {
		g.since, g.late = now, g.out
		g.goOn()
	}
}

// tooLarge takes the size of a payload that makes an event too large for the stream.
func (g *group) tooLarge(bytes int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.largest = min(g.largest, bytes-1)
}

// over notes that a batch is no longer with the server, as far as is known. To say so twice does nothing.
func (g *group) over(b *batch) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end(b)
}

// end is over; g.mu is held.
func (g *group) end(b *batch) {
	if !b.over {
		b.over = true
		g.flying--
		g.goOn()
	}
}

// forget forgets what was learned of a server that is not connected any more.
func (g *group) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pace, g.most, g.largest = &pace{}, batchEvents, batchPayload
	for _, b := range g.batches {
		g.end(b)
	}
}

// take takes out the gathered deliveries to publish now: each alone, and together as a batch with a token. Deliveries on
// subjects that are not trusted yet are published alone.
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
	g.goOn()
	return alone, b, together
}
