package history

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
)

// Record is one message of a stream. Anybody may have published it: only where Fault is empty is it an event of the
// timer that it names, and even then its texts are a stranger's.
type Record struct {
	Stream  string
	Kind    string // of its subject: keys.Fired or keys.Dead
	Seq     uint64 // its number in the stream
	Stored  time.Time
	Subject string
	MsgID   string // what its Nats-Msg-Id says
	Data    []byte
	Event   event.Event // what Data says, if Fault is ""
	Fault   string      // why Data is no event of a timer of the subject, "" if it is one
}

// newRecord reads a message of a stream of an installation whose subjects begin with prefix. Of r, Stream, Kind, Seq, Stored,
// Subject and Data are set.
func newRecord(prefix string, r Record, header nats.Header) Record {
	r.MsgID = header.Get(event.MsgIDHeader)
	var err error
	if r.Event, err = event.Parse(r.Data); err != nil {
		r.Fault = err.Error()
	} else if r.Event.Key.Subject(prefix, r.Kind) != r.Subject {
		r.Fault = fmt.Sprintf("of the timer %q, which is not one of the subject %s", event.ClipText(r.Event.Key.String()), r.Subject)
	}
	return r
}

// ID returns the event's id, or that of the message where it holds no event.
func (r Record) ID() string {
	if r.Fault != "" {
		return r.MsgID
	}
	return r.Event.ID
}

// Late returns how long after its due time a firing was published, and false where that is not known.
func (r Record) Late() (time.Duration, bool) {
	if r.Kind != keys.Fired || r.Fault != "" || r.Event.Time.IsZero() {
		return 0, false
	}
	return r.Event.Time.Sub(r.Event.Due), true
}
