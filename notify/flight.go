package notify

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/internal/lanes"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// firstPause and longestPause bound the pause before a firing is published again.
	firstPause   = 50 * time.Millisecond
	longestPause = time.Second
	// seekTime is the longest time for which a firing waits for the seeker.
	seekTime = 3 * time.Second
	// logLapsedEvery is the interval of log lines about firings that were given back.
	logLapsedEvery = time.Minute
)

// flight has the firings that are in the window and neither acknowledged nor given back. Each is in the lane of its
// subject. The methods of a flight may be called concurrently.
type flight struct {
	*Options
	gate     *gate
	window   *window
	health   *health
	stream   *streamRecord
	subjects *lanes.Window
	sender   *sender
	group    *group
	kick     chan struct{} // wakes the caller of inspect
	late     tally         // of firings that inspect gives back; for its caller

	lastToken atomic.Uint64

	mu         sync.Mutex
	deliveries map[uint64]*delivery // by token
}

// newToken returns a name for a reply subject.
func (f *flight) newToken() uint64 { return f.lastToken.Add(1) }

// add adds a delivery that has entered its lane. The caller then passes it to publish. There are two exceptions: the
// seeker looks for it first, or its lease runs out and inspect gives it back.
func (f *flight) add(d *delivery) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.deliveries) == 0 {
		signal(f.kick)
	}
	d.token = f.newToken()
	f.deliveries[d.token] = d
	switch {
	case d.fate == seek:
		d.state = looking
		d.next = time.Now().Add(min(seekTime, d.firing.Remaining()/2))
	case d.expiring():
		d.next = time.Now()
	default:
		d.state = queued
	}
}

// publish publishes queued deliveries, or leaves them to gather for a batch.
func (f *flight) publish(deliveries []*delivery) {
	for _, d := range deliveries {
		if !f.fresh(d) || !f.group.gather(d) {
			f.publishAlone(d)
		}
	}
}

// fresh reports whether a delivery is queued for the first time and suits a batch. inspect may publish it at the same
// time.
func (f *flight) fresh(d *delivery) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return d.state == queued && d.tries == 0 && !d.mayBeStored && !d.withhold
}

// publishAlone publishes a queued delivery. It does nothing if the lease runs out, or while the connection is down.
func (f *flight) publishAlone(d *delivery) {
	f.mu.Lock()
	withhold, ok := d.withhold, f.begin(d, nil)
	f.mu.Unlock()
	if !ok {
		return
	}
	err := f.sender.send(d, withhold)
	if err == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case d.state != sent || f.deliveries[d.token] != d: // already failed or acknowledged
	case errors.Is(err, errExpiring):
		f.takeBack(d)
	case errors.Is(err, nats.ErrMaxPayload):
		f.fail(d, FailureTooLarge, false)
	default:
		f.fail(d, FailureDisconnected, false)
	}
}

// takeBack queues a sent delivery again, to be published at once, unless its lease runs out. f.mu is held.
func (f *flight) takeBack(d *delivery) {
	f.unsend(d, waiting)
	d.next = time.Now()
}

// unsend notes that a delivery no longer waits for its outcome. f.mu is held.
func (f *flight) unsend(d *delivery, now state) {
	if d.state == sent && !d.together() {
		f.group.aloneDone()
	}
	d.state = now
}

// begin marks a delivery as sent, in a batch if b is not nil, and reports whether to send it now. f.mu is held.
func (f *flight) begin(d *delivery, b *batch) bool {
	switch {
	case d.state != queued || f.deliveries[d.token] != d:
		return false
	case !f.health.now().connected:
		f.fail(d, FailureDisconnected, false)
		return false
	case b != nil && (d.tries > 0 || d.expiring()): // inspect publishes it alone, or gives it back
		return false
	case b == nil:
		d.ahead = f.group.sent()
	default:
		d.batch = b
	}
	d.markSent(f.stream.highest(), f.AckWait)
	d.published = d.firing.Now()
	return true
}

// fail notes that a try to publish d has failed. denied means that the subject is known to be the cause. f.mu is held.
func (f *flight) fail(d *delivery, class Failure, denied bool) {
	together := d.together()
	if together {
		f.group.markAnswered(d.batch)
	}
	f.unsend(d, waiting)
	d.failure = class
	d.next = time.Now()
	if class == FailureDisconnected || class == FailureTimeout || class == FailureUnavailable {
		d.mayBeStored = true
	}
	pause := backoff.Policy{First: firstPause, Longest: longestPause}.Delay(d.tries)
	switch class {
	case FailureTimeout, FailureRefused:
		since := d.sentAt
		if denied {
			since = time.Time{}
		}
		// The subject is also the cause if, since the try began, events on other subjects were acknowledged and none on
		// this one. A batch without an answer proves nothing.
		if (denied || !together && f.health.now().acked.After(since)) && f.subjects.Fail(d.lane, since) {
			f.Logger.Warn(
				"NATS does not take the events on this subject, perhaps because the right to publish there is"+
					" missing: its timers wait, and one at a time is tried again", "subject", d.subject, "err", class)
		}
		if class == FailureRefused {
			d.next = d.next.Add(pause)
		}
	case FailureTooLarge:
		f.group.tooLarge(len(d.firing.Payload))
		attrs := []any{"key", d.firing.Key.String(), "due_at", d.firing.Due.Time(), "bytes", len(d.firing.Payload)}
		if d.withhold {
			d.next = d.next.Add(pause)
			f.Logger.Error("event is too large for NATS even without the payload", attrs...)
			break
		}
		d.withhold = true
		signal(f.kick)
		f.Logger.Warn("event is too large for NATS, publishing it without the payload", attrs...)
	default:
		d.next = d.next.Add(pause)
	}
	f.Metrics.Failed(class)
}

// disconnected notes that the server will not answer the sent deliveries.
func (f *flight) disconnected() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.deliveries {
		if d.state == sent {
			f.fail(d, FailureDisconnected, false)
		}
	}
	f.group.forget()
}

// deny notes that the NATS user may not publish on a subject. The server says so once for each message, outside the
// answers to the publisher.
func (f *flight) deny(subject string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// its deliveries are about to be given back
	if s := f.subjects.State(subject); s.Tries == 0 || s.Failing && s.Tries > 1 {
		return
	}
	for _, d := range f.deliveries {
		if d.subject == subject && d.state == queued { // it would be denied too
			d.state, d.failure, d.next = waiting, FailureRefused, time.Now()
		}
		if d.subject != subject || d.state != sent {
			continue
		}
		if d.together() { // then the batch is not complete
			f.takeApart(d.batch, true)
		}
		f.fail(d, FailureRefused, true)
		d.mayBeStored = true // the error may be about a later message
		// While another subject is trusted, only this subject is denied.
		if f.subjects.State(subject).Alone && !f.health.now().acked.After(d.sentAt) {
			f.health.noteSilence(time.Now(), true)
		}
	}
	signal(f.kick)
}

// receive takes a message to the reply subject of a delivery or batch. It may answer any of the tries: one success is
// enough.
func (f *flight) receive(token string, m *nats.Msg) {
	n, err := strconv.ParseUint(token, 36, 64)
	if err != nil {
		return
	}
	a, ok := readAnswer(m, f.Streams.FiredStream())
	if !ok {
		f.Logger.Debug("ignored a reply to an event that is not JetStream's", "source", m.Subject)
		return
	}
	if a.ok && f.health.noteLife(a.duplicate) {
		signal(f.kick)
		f.gate.announce()
	}
	if b := f.group.find(n); b != nil {
		f.receiveBatch(b, a)
		return
	}
	f.mu.Lock()
	d := f.deliveries[n]
	switch {
	case d == nil:
	case a.ok:
		if d.state == sent && d.tries == 1 {
			f.group.acknowledged(d.ahead, time.Since(d.sentAt))
		}
		f.stored(d, a)
	case d.state == sent:
		f.fail(d, a.class, false)
		f.health.refused(a, len(d.firing.Payload))
	}
	f.mu.Unlock()
	if d != nil && a.ok {
		f.Metrics.Fired(&d.firing, d.published.Sub(d.firing.Due.Time()), a.duplicate)
	}
}

// stored notes an answer: the stream has stored the event of d. f.mu is held, so that nothing is sent between the notes
// for its lane and for health.
func (f *flight) stored(d *delivery, a answer) {
	if !a.duplicate && f.stream.note(d.after, a.seq) {
		signal(f.health.alarm)
	}
	f.remove(d, lanes.Works)
	f.window.widen()
	f.health.noteAck()
	f.window.settle(d, schedule.OutcomeFired)
}

// found takes the seeker's result for a delivery: whether the stream has the event, and its stored time. A firing with
// a stored event is settled. Another one is published, or given back if NATS is away.
func (f *flight) found(d *delivery, stored bool, at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.deliveries[d.token] != d {
		return
	}
	d.state, d.next = waiting, time.Now()
	switch {
	case stored:
		f.remove(d, lanes.Nothing)
		f.window.settle(d, schedule.OutcomeFired)
		f.Metrics.Fired(&d.firing, max(at.Sub(d.firing.Due.Time()), 0), true)
	case !f.health.now().connected:
		f.release(d)
	}
}

// release gives the firing of a delivery back. f.mu is held.
func (f *flight) release(d *delivery) {
	d.mayBeStored = d.mayBeStored || d.state == sent
	f.remove(d, lanes.Nothing)
	f.window.giveBack(d, schedule.OutcomeGivenBack, 0)
}

// remove takes a delivery out. f.mu is held.
func (f *flight) remove(d *delivery, says lanes.Says) {
	f.unsend(d, waiting)
	if b := d.batch; b != nil {
		if b.left--; b.left == 0 {
			f.group.drop(b)
		}
	}
	f.subjects.Leave(d.lane, len(d.firing.Payload), says)
	if delete(f.deliveries, d.token); len(f.deliveries) == 0 && f.gate.isStopped() {
		signal(f.kick)
	}
}

// inspect looks through the deliveries. It returns the deliveries to publish now, as queued, and whether there are no
// deliveries at all. It gives back deliveries that cannot be published in time.
func (f *flight) inspect() (again []*delivery, idle bool) {
	now, health, stopping := time.Now(), f.health.now(), f.gate.isStopped()
	good, trying := health.good(), 0
	late := 0
	var failure Failure
	f.group.expireOverdue(now)
	f.mu.Lock()
	for _, d := range f.deliveries {
		if d.state == sent {
			if now.Before(d.next) {
				trying++
				continue
			}
			f.health.noteSilence(now, false)
			f.fail(d, FailureTimeout, false)
		}
		switch {
		case d.state == waiting && (d.tries > 0 || d.failure != "") && good && f.subjects.State(d.subject).Failing:
			f.remove(d, lanes.Nothing)
			f.window.park(d, lanes.Failing)
		case d.expiring() || stopping && !good:
			if d.failure == FailureTimeout {
				f.window.narrow(d.sentAt)
			}
			f.release(d)
			late++
			failure = d.failure
		case d.state != waiting:
		case good && !now.Before(d.next) && (trying == 0 || !health.trial()):
			d.state = queued
			again = append(again, d)
			trying++
		}
	}
	idle = len(f.deliveries) == 0
	f.mu.Unlock()
	if count := f.late.add(now, late); count > 0 {
		f.Logger.Warn(
			"firings could not be published before the end of their lease: giving them back, and counting them for"+
				" a minute", "count", count, "err", failure)
	}
	slices.SortFunc(again, func(a, b *delivery) int { return cmp.Compare(a.token, b.token) })
	return again, idle
}

// abandon gives all deliveries back.
func (f *flight) abandon() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.deliveries); n > 0 {
		f.Logger.Warn("stopping with firings that are not acknowledged: giving them back", "count", n)
	}
	for _, d := range f.deliveries {
		f.release(d)
	}
}
