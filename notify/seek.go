package notify

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
)

const (
	// clockSlack is the longest time by which the clock of NATS may lag behind the clock of Redis.
	clockSlack = 10 * time.Second
	// subjectTime limits the part of seekTime for one subject: some 100,000 events. seekBatch is the number of events
	// in a request.
	subjectTime = time.Second
	seekBatch   = 1000
	// maxFailingLooks limits the simultaneous looks on failing subjects. It leaves nearly all of the time to other
	// subjects.
	maxFailingLooks = 2
)

// seeker looks in the stream for the events of deliveries that JetStream would store a second time. Its methods may be
// called concurrently.
type seeker struct {
	*Options
	js     jetstream.JetStream
	flight *flight
	wake   chan struct{} // wakes run

	mu      sync.Mutex
	looks   []*delivery // to look for
	failing int         // number of looks on failing subjects
}

// mayLook reports whether an event on a failing subject may be looked for, and counts it.
func (s *seeker) mayLook() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing >= maxFailingLooks {
		return false
	}
	s.failing++
	return true
}

// lookFor queues a look for the event of a delivery.
func (s *seeker) lookFor(d *delivery) {
	s.mu.Lock()
	s.looks = append(s.looks, d)
	s.mu.Unlock()
	signal(s.wake)
}

// run looks for events until ctx ends. Deliveries whose event is found are settled. All others are published, also if
// the stream could not be read to its end in time: a second event is better than none.
func (s *seeker) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		bySubject := map[string][]*delivery{}
		s.mu.Lock()
		for _, d := range s.looks {
			bySubject[d.subject] = append(bySubject[d.subject], d)
		}
		s.looks = nil
		s.mu.Unlock()
		for subject, deliveries := range bySubject {
			stored, err := s.storedEvents(ctx, subject, deliveries)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				s.Logger.Warn("it is unknown whether the stream has the events; they may be stored twice", "subject",
					subject,
					"count", len(deliveries)-len(stored), "err", err)
			}
			s.report(deliveries, stored)
		}
	}
}

// report passes the results for deliveries to the flight. stored has the storage times of the found events by id.
func (s *seeker) report(deliveries []*delivery, stored map[string]time.Time) {
	for _, d := range deliveries {
		at, ok := stored[d.id]
		if !ok && d.otherID != "" {
			at, ok = stored[d.otherID]
		}
		if d.failingLook {
			s.mu.Lock()
			s.failing--
			s.mu.Unlock()
		}
		s.flight.found(d, ok, at)
	}
	signal(s.flight.kick)
}

// storedEvents returns the storage times of the events of deliveries on one subject, by id. Beside an error it returns
// the events found so far.
func (s *seeker) storedEvents(
	ctx context.Context, subject string, deliveries []*delivery,
) (map[string]time.Time, error) {
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
	stream := s.Streams.FiredStream()
	consumer, err := s.js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{
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
		// otherwise the server does, when it is inactive
		_ = s.js.DeleteConsumer(ctx, stream, consumer.CachedInfo().Name)
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
