package notify

import (
	"errors"
	"log/slog"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/lanes"
	"github.com/timerd-io/timerd/schedule"
)

// longestMargin limits the part of the lease that must be left to publish a firing. The part is a tenth: in that time
// the acknowledgement must come and be settled, before another timerd publishes the firing too.
const longestMargin = time.Second

// errExpiring means that too little is left of a lease to publish its firing.
var errExpiring = errors.New("the lease runs out")

// delivery is one firing between Publish and its end. The flight owns the second group of fields; the first is fixed
// once the delivery is in flight.
type delivery struct {
	firing      schedule.Firing
	server      string // in the window
	id          string
	otherID     string // another id that its event may have in the stream; "" for none
	attempt     int
	maxAttempts int
	fate        fate
	reason      string // of a dead letter or a drop
	subject     string
	lane        *lanes.Lane // of the subject
	token       uint64      // names the delivery in reply subjects

	mayBeStored bool // a try of this claim or an earlier one may have stored the event
	failingLook bool // counts as one of the seeker's looks on failing subjects
	state       state
	sentAt      time.Time // last publication
	ahead       int       // lone events with the server at sentAt; noSample if the acknowledgement measures nothing
	batch       *batch    // of the first try; nil if alone
	next        time.Time // sent: end of the wait for the outcome; otherwise: time of the next publication
	tries       int
	failure     Failure   // of the last failed try
	withhold    bool      // publish without the payload, which is too large
	published   time.Time // the event's time, by the Redis server's clock
	after       sequence  // highest acknowledged sequence before the first try
}

// state says on what a delivery waits.
type state int

const (
	waiting state = iota // for the time of the next publication
	looking              // for the seeker's result
	queued               // for its publication, alone or with others
	sent                 // for the answer of the server
)

// sequence is the sequence of a message in the stream. After a breach sequences begin anew, and cannot be compared with
// earlier ones. age is the number of breaches before it.
type sequence struct {
	age int
	seq uint64
}

// expiring reports whether too little is left of the firing's lease to publish it.
func (d *delivery) expiring() bool {
	return d.firing.Remaining() < min(d.firing.Lease/10, longestMargin)
}

// markSent notes that d is about to be published. highest is the highest acknowledged sequence, and wait the time to
// wait for d's own acknowledgement.
func (d *delivery) markSent(highest sequence, wait time.Duration) {
	d.state = sent
	if d.tries == 0 {
		d.after = highest
	}
	d.tries++
	d.sentAt = time.Now()
	d.next = d.sentAt.Add(min(wait, d.firing.Remaining()))
}

// together reports whether d waits for the outcome of its batch.
func (d *delivery) together() bool { return d.state == sent && d.batch != nil && d.tries == 1 }

// event returns the event of d, or the event for its dead letter, without the reason. contentType is the encoding of
// payloads.
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
		Guards:      d.firing.Guards,
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
