package history

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
)

// Record is one message of a stream. Anybody may have published it: it is an event or a delivery of its timer only if
// Fault is empty, and even then its texts are not trusted.
type Record struct {
	Stream   string
	Kind     string // of its subject: keys.Fired, keys.Dead, keys.Delivery, keys.History or keys.Operator
	Seq      uint64 // its number in the stream
	Stored   time.Time
	Subject  string
	MsgID    string // its Nats-Msg-Id
	Data     []byte
	Key      keys.Key       // of the timer, if Fault is ""; none of keys.Operator
	Event    event.Event    // from Data, if Fault is "" and Kind is keys.Fired or keys.Dead
	Delivery event.Delivery // from Data, if Fault is "" and Kind is keys.Delivery
	Entry    event.Entry    // from Data, if Fault is "" and Kind is keys.History or keys.Operator
	Fault    string         // the reason why Data is no message about a timer of the subject; "" if it is one
}

// newRecord reads a message of a stream of an installation whose subjects begin with prefix. Of r, Stream, Kind, Seq,
// Stored, Subject and Data are set.
func newRecord(prefix string, r Record, header nats.Header) Record {
	r.MsgID = header.Get(event.MsgIDHeader)
	var err error
	switch r.Kind {
	case keys.Delivery:
		if r.Delivery, err = event.ParseDelivery(r.Data); err == nil {
			r.Key, err = r.Delivery.Key()
		}
	case keys.History, keys.Operator:
		r.Entry, err = event.ParseEntry(r.Data)
		switch {
		case err != nil:
		case r.Entry.IsEnd() != (r.Kind == keys.History):
			err = fmt.Errorf("its kind %q does not match its NATS subject", event.ClipText(string(r.Entry.Kind)))
		case r.Kind == keys.History:
			r.Key = r.Entry.Keys()[0]
		}
	default:
		r.Event, err = event.Parse(r.Data)
		r.Key = r.Event.Key
	}
	if err != nil {
		r.Fault = err.Error()
	} else if r.Kind != keys.Operator && r.Key.Subject(prefix, r.Kind) != r.Subject {
		r.Fault = fmt.Sprintf("its timer %q does not match its NATS subject %s", event.ClipText(r.Key.String()),
			r.Subject)
	}
	return r
}

// ID returns the event's id, or the message's id if it is unknown.
func (r Record) ID() string {
	switch {
	case r.Fault != "":
		return r.MsgID
	case r.Kind == keys.Delivery:
		return r.Delivery.ID
	case r.Kind == keys.History, r.Kind == keys.Operator:
		return ""
	}
	return r.Event.ID
}

// failed reports whether it is a delivery whose call failed.
func (r Record) failed() bool {
	d := r.Delivery
	return r.Kind == keys.Delivery && r.Fault == "" && d.Result != event.ResultDelivered &&
		(d.Result != event.ResultPostponed || d.Duration > 0)
}

// Late returns the lateness of a firing's publication, or false if unknown.
func (r Record) Late() (time.Duration, bool) {
	if r.Kind != keys.Fired || r.Fault != "" || r.Event.Time.IsZero() {
		return 0, false
	}
	return r.Event.Time.Sub(r.Event.Due), true
}
