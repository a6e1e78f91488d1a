package notify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// windowSlack is by how much sooner than after the duplicate window the stream is looked at.
	windowSlack = 5 * time.Second
	// clockSlack is by how much the clock of NATS may be behind that of Redis for an event to be found.
	clockSlack = 10 * time.Second
	// seekTime bounds how long a firing waits until the stream has been looked at, and subjectTime how much of it one
	// subject may take: some 100,000 events. seekBatch is how many of them are asked for at once.
	seekTime    = 3 * time.Second
	subjectTime = time.Second
	seekBatch   = 1000
	// maxFailingLooks is how many events on subjects that fail are looked for at the same time.
	maxFailingLooks = 2
)

// outlivesWindow tells whether JetStream may have forgotten the id of a firing, which was perhaps published before, when
// it is published again. It was not published before it was due. p.mu is held.
func (p *Publisher) outlivesWindow(f *schedule.Firing) bool {
	return f.MayBeStored && f.Now().Add(f.Remaining()).Sub(f.Due.Time()) > p.health.window-windowSlack
}

// mustSeek tells whether a delivery is to be looked for in the stream: JetStream may have forgotten its id, or have it under
// another one. p.mu is held.
func (p *Publisher) mustSeek(d *delivery) bool { return d.otherID != "" || p.outlivesWindow(&d.firing) }

// maySeek tells whether a delivery may enter the window although it may have to be looked for. Those on subjects that fail
// anyway leave nearly all of the time for others. p.mu is held.
func (p *Publisher) maySeek(d *delivery) bool {
	return !d.trust.failing || p.failingLooks < maxFailingLooks || !p.mustSeek(d)
}

// endLook counts a delivery no longer that is not looked for any more. p.mu is held.
func (p *Publisher) endLook(d *delivery) {
	d.looking = false
	if d.failingLook {
		d.failingLook = false
		p.failingLooks--
	}
}

// lookFor has seek look for the event of a delivery. p.mu is held.
func (p *Publisher) lookFor(d *delivery) {
	d.looking = true
	if d.trust.failing {
		d.failingLook = true
		p.failingLooks++
	}
	d.next = time.Now().Add(min(seekTime, d.firing.Remaining()/2))
	p.looks = append(p.looks, d)
	signal(p.sought)
}

// seek looks in the stream for the events of deliveries that JetStream would store a second time, until ctx ends. What is
// found is settled. All else is published, also if the stream could not be read to its end in time: rather twice than
// never.
func (p *Publisher) seek(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.sought:
		}
		p.mu.Lock()
		bySubject := map[string][]*delivery{}
		for _, d := range p.looks {
			bySubject[d.subject] = append(bySubject[d.subject], d)
		}
		p.looks = nil
		p.mu.Unlock()
		for subject, deliveries := range bySubject {
			stored, err := p.storedEvents(ctx, subject, deliveries)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				p.Logger.Warn("cannot tell whether events are in the stream already, which may store them twice", "subject", subject,
					"count", len(deliveries)-len(stored), "err", err)
			}
			p.found(deliveries, stored)
		}
	}
}

// found has deliveries settled that are in the stream, by their ids and when they were stored, and the others published.
// If NATS is away meanwhile, they are given back.
func (p *Publisher) found(deliveries []*delivery, stored map[string]time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range deliveries {
		if p.deliveries[d.token] != d {
			continue
		}
		p.endLook(d)
		d.next = time.Now()
		at, ok := stored[d.id]
		if !ok && d.otherID != "" {
			at, ok = stored[d.otherID]
		}
		switch {
		case ok:
			p.remove(d)
			p.settle(d)
			p.OnFired(&d.firing, max(at.Sub(d.firing.Due.Time()), 0), true)
		case !p.health.connected:
			p.release(d)
		}
	}
	signal(p.kick)
}

// storedEvents returns which events of deliveries on one subject are in the stream, by their ids, and when they were
// stored. Beside an error it returns what it has found so far.
func (p *Publisher) storedEvents(ctx context.Context, subject string, deliveries []*delivery) (map[string]time.Time, error) {
	wanted := make(map[string]bool, len(deliveries))
	first, until := deliveries[0].firing.Due, time.Now().Add(subjectTime)
	for _, d := range deliveries {
		wanted[d.id] = true
		if d.otherID != "" {
			wanted[d.otherID] = true
		}
		first = min(first, d.firing.Due)
		if d.next.Before(until) {
			until = d.next
		}
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	from := first.Time().Add(-clockSlack)
	stream := p.Streams.FiredStream()
	consumer, err := p.js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{
		FilterSubject:     subject,
		DeliverPolicy:     jetstream.DeliverByStartTimePolicy,
		OptStartTime:      &from,
		AckPolicy:         jetstream.AckNonePolicy,
		HeadersOnly:       true,
		MemoryStorage:     true,
		Replicas:          1,
		InactiveThreshold: 2 * seekTime,
	})
	if err != nil {
		return nil, fmt.Errorf("stream %s cannot be read: %w", stream, err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), subjectTime)
		defer cancel()
		_ = p.js.DeleteConsumer(ctx, stream, consumer.CachedInfo().Name) // otherwise the server does, when it is inactive
	}()
	found := map[string]time.Time{}
	for left := consumer.CachedInfo().NumPending; left > 0 && len(found) < len(wanted); {
		batch, err := consumer.Fetch(int(min(left, seekBatch)), jetstream.FetchContext(ctx))
		if err != nil {
			return found, fmt.Errorf("stream %s cannot be read: %w", stream, err)
		}
		for m := range batch.Messages() {
			left--
			id := m.Headers().Get(event.MsgIDHeader)
			if meta, err := m.Metadata(); err == nil && wanted[id] {
				found[id] = meta.Timestamp
			}
		}
		if err := errors.Join(batch.Error(), ctx.Err()); err != nil {
			return found, fmt.Errorf("stream %s has %d more events since %v: %w", stream, left, from.UTC(), err)
		}
	}
	return found, nil
}
