package notify

import (
	"context"
	"time"
)

// batch is several events that are published as one. flight.mu guards the second group of fields, group.mu the third.
type batch struct {
	token uint64 // names it in reply subjects
	began time.Time

	members []*delivery // in the order of the batch
	left    int         // members in flight

	answered bool // the server has answered, or the wait is over
}

// publishGathered publishes the deliveries that wait for each other, as the group decides, until ctx ends.
func (f *flight) publishGathered(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.group.wake:
			alone, b, together := f.group.take(f.newToken())
			for _, d := range alone {
				f.publishAlone(d)
			}
			if b != nil {
				f.publishBatch(b, together)
			}
		}
	}
}

// publishBatch publishes queued deliveries as one batch. begin refuses some of them.
func (f *flight) publishBatch(b *batch, deliveries []*delivery) {
	f.mu.Lock()
	for _, d := range deliveries {
		if f.begin(d, b) {
			b.members = append(b.members, d)
		}
	}
	b.left = len(b.members)
	f.mu.Unlock()
	if len(b.members) == 0 {
		f.group.drop(b)
		return
	}
	if err := f.sender.sendBatch(b); err != nil {
		f.mu.Lock()
		f.takeApart(b, true)
		f.mu.Unlock()
	}
}

// receiveBatch takes the answer to a batch. If the server refused it because of one event, each event is published
// alone.
func (f *flight) receiveBatch(b *batch, a answer) {
	var fired []*delivery
	f.mu.Lock()
	if a.ok {
		f.group.committed(b)
	}
	first := a.seq - uint64(len(b.members)) + 1
	for i, d := range b.members {
		switch {
		case f.deliveries[d.token] != d: // it was given back
		case a.ok:
			fired = append(fired, d)
			f.stored(d, answer{seq: first + uint64(i)})
		case d.together() && !a.ofBatch():
			f.fail(d, a.class, false)
			f.health.refused(a, len(d.firing.Payload))
		}
	}
	if !a.ok && a.ofBatch() {
		f.takeApart(b, f.group.refused(a))
	}
	f.mu.Unlock()
	for _, d := range fired {
		f.Metrics.Fired(&d.firing, d.published.Sub(d.firing.Due.Time()), false)
	}
}

// takeApart publishes the deliveries of a batch alone, unless they have ended already. stored means that the stream may
// have them. f.mu is held.
func (f *flight) takeApart(b *batch, stored bool) {
	for _, d := range b.members {
		if d.together() && f.deliveries[d.token] == d {
			d.mayBeStored = d.mayBeStored || stored
			f.takeBack(d)
		}
	}
	f.group.markAnswered(b)
	signal(f.kick)
}
