package notify

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// longestMargin bounds how much of its lease a firing must have left to be published: a tenth, as time for the
	// acknowledgement to come and be settled before somebody else publishes the firing too.
	longestMargin = time.Second

	// firstPause and longestPause bound the pause before a firing is published again.
	firstPause   = 50 * time.Millisecond
	longestPause = time.Second
)

// delivery is one firing between Publish and its acknowledgement. Publisher.mu guards the second group of fields; the
// first does not change.
type delivery struct {
	firing      schedule.Firing
	server      string // that it is counted for in the window
	id          string
	otherID     string // under which it may be in the stream too; "" for none
	attempt     int
	maxAttempts int
	subject     string
	trust       *subjectTrust // of the subject
	token       uint64        // names the delivery in reply subjects

	// failingLook says that it is looked for, on a subject that was failing then.
	failingLook bool
	looking     bool      // neither published nor given up until it is known whether the stream has the event
	sent        bool      // published, its outcome unknown
	sentAt      time.Time // when it was published last
	next        time.Time // if sent, when to give up waiting for the outcome; otherwise when to publish again
	tries       int
	failure     Failure   // of the last try that failed
	withhold    bool      // publish without the payload, which is too large
	published   time.Time // the event's time, on the Redis server's clock
	after       sequence  // the highest that was acknowledged before it was sent first
}

// expiring tells whether too little is left of the firing's lease to publish it.
func (d *delivery) expiring() bool {
	return d.firing.Remaining() < min(d.firing.Lease/10, longestMargin)
}

// markSent notes that d is about to be published. p.mu is held.
func (p *Publisher) markSent(d *delivery) {
	d.sent = true
	if d.tries == 0 {
		d.after = p.ledger.highest
	}
	d.tries++
	d.sentAt = time.Now()
	d.next = d.sentAt.Add(min(p.AckWait, d.firing.Remaining()))
}

// fail notes that a try to publish d has failed. p.mu is held.
func (p *Publisher) fail(d *delivery, class Failure) {
	d.sent = false
	d.failure = class
	d.next = time.Now()
	if class == FailureDisconnected || class == FailureTimeout || class == FailureUnavailable {
		d.firing.MayBeStored = true
	}
	pause := backoff.Policy{First: firstPause, Longest: longestPause}.Delay(d.tries)
	switch class {
	case FailureTimeout, FailureRefused:
		// Events on other subjects were acknowledged meanwhile, and none on this one: it is the subject.
		if p.health.acked.After(d.sentAt) && !d.trust.acked.After(d.sentAt) {
			p.distrust(d, class)
		}
		if class == FailureRefused {
			d.next = d.next.Add(pause)
		}
	case FailureTooLarge:
		attrs := []any{"key", d.firing.Key.String(), "due_at", d.firing.Due.Time(), "bytes", len(d.firing.Payload)}
		if d.withhold {
			d.next = d.next.Add(pause)
			p.Logger.Error("event is too large for NATS even without the payload", attrs...)
			break
		}
		d.withhold = true
		signal(p.kick)
		p.Logger.Warn("event is too large for NATS, publishing it without the payload", attrs...)
	default:
		d.next = d.next.Add(pause)
	}
	p.OnFailed(class)
}

// distrust notes that NATS does not take the subject of a delivery. p.mu is held.
func (p *Publisher) distrust(d *delivery, class Failure) {
	if p.trust.fail(d.trust) {
		p.Logger.Warn("NATS does not take the events on this subject, for want of a right to publish there perhaps: its timers wait, and one at a time is tried",
			"subject", d.subject, "err", class)
	}
}

// deny notes that the NATS user may not publish on a subject. The server says so once for each message, by itself: to
// the publisher it gives no answer.
func (p *Publisher) deny(subject string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.trust.subjects[subject]
	if s == nil || s.load.deliveries == 0 || s.failing && s.load.deliveries > 1 { // the latter are about to be given back
		return
	}
	for _, d := range p.deliveries {
		if d.subject == subject && d.sent {
			p.distrust(d, FailureRefused)
			// As long as another subject is trusted, it is a matter of this one.
			if p.trust.trusted == 0 && p.health.silent.IsZero() && !p.health.acked.After(d.sentAt) {
				p.health.silent = time.Now()
			}
			p.fail(d, FailureRefused)
			d.firing.MayBeStored = true // the error may be about a later message
		}
	}
	signal(p.kick)
}

// deniedSubject returns the subject that a server's error says one may not publish on.
func deniedSubject(err error) (subject string, ok bool) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return "", false
	}
	_, rest, ok := strings.Cut(err.Error(), `Publish to "`)
	subject, _, closed := strings.Cut(rest, `"`)
	return subject, ok && closed
}

// send publishes deliveries that are marked as sent. It passes over those whose lease runs out, and all of them while
// the connection is down.
func (p *Publisher) send(deliveries []*delivery) {
	if len(deliveries) == 0 {
		return
	}
	p.sending.Lock()
	defer p.sending.Unlock()
	for _, d := range deliveries {
		withhold, ok := p.begin(d)
		if !ok {
			continue
		}
		p.encode(d, withhold)
		message := nats.Msg{
			Subject: d.subject,
			Reply:   p.inbox + strconv.FormatUint(d.token, 36),
			Header:  p.header,
			Data:    p.buf,
		}
		if d.expiring() {
			p.skip(d)
		} else if err := p.nc.PublishMsg(&message); err != nil {
			p.failToSend(d, err)
		}
	}
}

// begin returns ok if d is to be sent now, and whether to withhold its payload.
func (p *Publisher) begin(d *delivery) (withhold, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !d.sent || p.deliveries[d.token] != d {
		return false, false
	}
	if !p.health.connected {
		p.fail(d, FailureDisconnected)
		return false, false
	}
	d.published = d.firing.Now()
	return d.withhold, true
}

// encode writes d's event into p.buf, and its headers into p.header. p.sending is held.
func (p *Publisher) encode(d *delivery, withhold bool) {
	e := p.event(d, withhold)
	p.buf = e.AppendJSON(p.buf[:0])
	p.header[event.MsgIDHeader][0] = d.id
	if e.TraceParent != "" || p.traced {
		e.SetTraceHeaders(p.header)
		p.traced = e.TraceParent != ""
	}
}

// event returns d's event, or that of its dead letter but for what makes it one.
func (p *Publisher) event(d *delivery, withhold bool) event.Event {
	e := event.Event{
		ID:          d.id,
		Type:        event.TypeFired,
		Key:         d.firing.Key,
		Time:        d.published,
		Due:         d.firing.Due.Time(),
		Attempt:     d.attempt,
		MaxAttempts: d.maxAttempts,
		Trigger:     string(d.firing.Trigger),
		Late:        d.firing.Late,
		ContentType: p.ContentType,
	}
	e.TraceParent, e.TraceState = event.Trace(d.firing.TraceParent, d.firing.Payload)
	if d.firing.TraceState != "" {
		e.TraceState = d.firing.TraceState
	}
	if o := d.firing.Origin; o != (schedule.Origin{}) {
		e.SetOrigin(o.Due.Time(), o.Attempt)
	}
	if d.firing.Replayed != 0 {
		e.Replayed = d.firing.Replayed.Time()
	}
	if o := d.firing.Occurrence; o != nil {
		e.Repeat, e.Occurrence = o.Repeat, o.Number
	}
	switch {
	case d.firing.Status == schedule.PayloadMissing:
		e.Status = event.StatusMissing
	case withhold:
		e.Status = event.StatusTooLarge
	case d.firing.Payload == nil:
		e.Data = []byte{}
	default:
		e.Data = d.firing.Payload
	}
	return e
}

// skip notes that d was not sent, because its lease runs out.
func (p *Publisher) skip(d *delivery) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leave(d)
}

// leave leaves d, whose lease runs out, to inspect, which gives its firing back. p.mu is held.
func (p *Publisher) leave(d *delivery) {
	d.sent = false
	d.next = time.Now()
}

// failToSend notes that the client library did not take d's message.
func (p *Publisher) failToSend(d *delivery, err error) {
	class := FailureDisconnected
	if errors.Is(err, nats.ErrMaxPayload) {
		class = FailureTooLarge
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if d.sent && p.deliveries[d.token] == d {
		p.fail(d, class)
	}
}

// receive takes a message to the reply subject of a delivery. It may answer any of the delivery's tries: one success is
// enough.
func (p *Publisher) receive(token string, m *nats.Msg) {
	n, err := strconv.ParseUint(token, 36, 64)
	if err != nil {
		return
	}
	a, ok := readAnswer(m, p.Streams.FiredStream())
	if !ok {
		p.Logger.Debug("ignored a reply to an event that is not JetStream's", "source", m.Subject)
		return
	}
	p.mu.Lock()
	d := p.deliveries[n]
	switch {
	case d == nil && a.ok: // too late for its firing, but the stream works
		p.health.noteAck()
	case d == nil:
	case a.ok:
		if !a.duplicate && p.ledger.note(d.after, a.seq) {
			signal(p.alarm)
		}
		p.finish(d)
	case d.sent:
		p.fail(d, a.class)
		p.blame(a.class, fmt.Errorf("stream %s refuses events: %w", p.Streams.FiredStream(), a.err), len(d.firing.Payload))
	}
	p.mu.Unlock()
	if d != nil && a.ok {
		p.OnFired(&d.firing, d.published.Sub(d.firing.Due.Time()), a.duplicate)
	}
}

// finish has an acknowledged delivery settled. p.mu is held.
func (p *Publisher) finish(d *delivery) {
	p.remove(d)
	p.health.noteAck()
	p.trust.succeed(d.trust, p.health.acked)
	p.settle(d)
	if p.stopping {
		signal(p.kick)
	}
}

// release has the firing of a delivery given back. p.mu is held.
func (p *Publisher) release(d *delivery) {
	d.firing.MayBeStored = d.firing.MayBeStored || d.sent
	p.remove(d)
	p.giveBack(d)
}

func (p *Publisher) remove(d *delivery) {
	delete(p.deliveries, d.token)
	p.trust.remove(d.trust, len(d.firing.Payload))
	p.endLook(d)
	p.heldBytes -= len(d.firing.Payload)
}

// inspect looks through the deliveries. It returns those to publish now, marked as sent, and whether there are none at
// all. It releases those that cannot be published in time.
func (p *Publisher) inspect() (again []*delivery, idle bool) {
	p.mu.Lock()
	now, good := time.Now(), p.health.good()
	late := 0
	var failure Failure
	for _, d := range p.deliveries {
		if d.sent {
			if now.Before(d.next) {
				continue
			}
			if p.health.silent.IsZero() {
				p.health.silent = now
			}
			p.fail(d, FailureTimeout)
		}
		switch {
		case d.trust.failing && !d.sent && d.failure != "" && good:
			d.firing.Pause, d.firing.Refused = d.trust.pause(&d.firing), true
			p.release(d)
			p.OnSetAside(&d.firing)
		case d.expiring() || p.stopping && !good:
			p.release(d)
			late++
			failure = d.failure
		case d.looking:
		case good && !now.Before(d.next):
			p.markSent(d)
			again = append(again, d)
		}
	}
	idle = len(p.deliveries) == 0 && p.letters.load.deliveries == 0
	p.mu.Unlock()
	if late > 0 {
		p.Logger.Warn("firings could not be published before the end of their lease: giving them back", "count", late, "err", failure)
	}
	slices.SortFunc(again, func(a, b *delivery) int { return cmp.Compare(a.token, b.token) })
	return again, idle
}

// abandon releases every delivery that is left, and has the settler finish.
func (p *Publisher) abandon() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.deliveries); n > 0 {
		p.Logger.Warn("stopping with firings that are not acknowledged: giving them back", "count", n)
	}
	for _, d := range p.deliveries {
		p.release(d)
	}
	p.settler.finish()
}
