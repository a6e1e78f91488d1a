package notify

import (
	"errors"
	"log/slog"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/lanes"
	"github.com/timerd-io/timerd/schedule"
)

// longestMargin bounds how much of its lease a firing must have left to be published: a tenth, as time for the
// acknowledgement to come and be settled before somebody else publishes the firing too.
const longestMargin = time.Second

// errExpiring says that too little is left of a lease.
var errExpiring = errors.New("the lease runs out")

// delivery is one firing between Publish and its end. The second group of fields is its flight's; the first does not change
// once it is in flight.
type delivery struct {
	firing      schedule.Firing
	server      string // that it is counted for in the window
	id          string
	otherID     string // under which it may be in the stream too; "" for none
	attempt     int
	maxAttempts int
	fate        fate
	reason      string // for a dead letter or a drop
	subject     string
	lane        *lanes.Lane // of the subject
	token       uint64      // names the delivery in reply subjects

	mayBeStored bool // some try may have stored the event, this claim's or an earlier one's
	failingLook bool // it is looked for, on a subject that was failing then
	state       state
	sentAt      time.Time // when it was published last
	ahead       int       // how many others were with the server then, each by itself; alone if that says nothing
	batch       *batch    // that it was published in first, nil if by itself
	next        time.Time // if sent, when to give up waiting for the outcome; otherwise when to publish again
	tries       int
	failure     Failure   // of the last try that failed
	withhold    bool      // publish without the payload, which is too large
	published   time.Time // the event's time, on the Redis server's clock
	after       sequence  // the highest that was acknowledged before it was sent first
}

// state is what a delivery waits for.
type state int

const (
	waiting state = iota // for its time to be published
	looking              // until it is known whether the stream has the event
	queued               // to be published, alone or with others
	sent                 // for its outcome
)

// sequence is that of a message in the stream. Those before and after a breach do not compare: age counts the breaches.
type sequence struct {
	age int
	seq uint64
}

// expiring reports whether too little is left of the firing's lease to publish it.
func (d *delivery) expiring() bool {
	return d.firing.Remaining() < min(d.firing.Lease/10, longestMargin)
}

// markSent notes that d is about to be published: highest is what was acknowledged before, wait how long to wait for its own
// acknowledgement.
func (d *delivery) markSent(highest sequence, wait time.Duration) {
	d.state = sent
	if d.tries == 0 {
		d.after = highest
	}
	d.tries++
	d.sentAt = time.Now()
	d.next = d.sentAt.Add(min(wait, d.firing.Remaining()))
}

// together reports whether d waits for the outcome of its batch, rather than of an event by itself.
func (d *delivery) together() bool { return d.state == sent && d.batch != nil && d.tries == 1 }

// event returns d's event, or that of its dead letter but for what makes it one. contentType says how payloads travel.
func (d *delivery) event(contentType string, withhold bool) event.Event {
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
		ContentType: contentType,
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

// logStatus logs that a timer fires without its payload.
func (d *delivery) logStatus(logger *slog.Logger) {
	why := event.StatusMissing
	if d.firing.Status == schedule.PayloadTooLarge {
		why = event.StatusTooLarge
	}
	logger.Warn("timer fires without its payload", "key", d.firing.Key.String(),
		"due_at", d.firing.Due.Time(), "attempt", d.attempt, "source", string(d.firing.Trigger), "err", why)
}
