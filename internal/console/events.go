package console

import (
	"cmp"
	"strconv"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/keys"
)

// lateAfter is the lateness from which a firing is marked.
const lateAfter = 25 * time.Millisecond

// EventView is a message of the streams: a firing or a dead letter.
type EventView struct {
	Kind       string     `json:"kind"` // fired or dead
	Stream     string     `json:"stream"`
	Seq        uint64     `json:"seq"`
	Stored     time.Time  `json:"stored"`
	ID         string     `json:"id"`
	Key        string     `json:"key,omitempty"`
	Ref        string     `json:"ref,omitempty"`
	Due        *time.Time `json:"due,omitempty"`
	At         time.Time  `json:"at"`             // its publication; its stored time, if that is unknown
	Late       *lateness  `json:"late,omitempty"` // of a firing
	Attempt    int        `json:"attempt,omitempty"`
	Of         int        `json:"maxattempts,omitempty"`
	Trigger    string     `json:"trigger,omitempty"`
	Repeat     string     `json:"repeat,omitempty"`
	Occurrence int64      `json:"occurrence,omitempty"`
	DeadReason string     `json:"deadreason,omitempty"`
	LastError  string     `json:"lasterror,omitempty"`
	Origin     string     `json:"origin,omitempty"` // the id of its timer's first event, if another one
	Trace      string     `json:"traceparent,omitempty"`
	NoResend   string     `json:"noresend,omitempty"` // of a firing: why it cannot be sent again
	Fault      string     `json:"fault,omitempty"`    // why it is no event
	Payload    Payload    `json:"payload"`

	Name keyText `json:"-"`
}

// newEventView returns the view of a record, with at most so many bytes of its payload.
func newEventView(r history.Record, most int) EventView {
	v := EventView{Kind: r.Kind, Stream: r.Stream, Seq: r.Seq, Stored: r.Stored.UTC(),
		ID: clip(r.ID(), keys.MaxEventIDBytes), At: r.Stored.UTC(), Fault: r.Fault}
	if r.Kind == keys.Fired {
		if why := admin.NoResend(r); why != nil {
			v.NoResend = why.Error()
		}
	}
	if r.Fault != "" {
		v.Payload = newPayload(r.Data, event.StatusMissing, most)
		return v
	}
	e := r.Event
	name := e.Key.String()
	v.Key, v.Ref, v.Name = keys.EncodeText(name), encodeRef(name), newKeyText(e.Key)
	due := e.Due.UTC()
	v.Due, v.Attempt, v.Of, v.Trigger = &due, e.Attempt, e.MaxAttempts, e.Trigger
	v.Repeat, v.Occurrence, v.DeadReason, v.LastError = e.Repeat, e.Occurrence, e.DeadReason, e.LastError
	v.Origin, v.Trace = clip(e.Origin, keys.MaxEventIDBytes), e.TraceParent
	if !e.Time.IsZero() {
		v.At = e.Time.UTC()
	}
	if late, known := r.Late(); known {
		v.Late = (*lateness)(&late)
	}
	v.Payload = newPayload(e.Data, cmp.Or(e.Status, event.StatusMissing), most)
	return v
}

// LateText returns the lateness of a firing.
func (v EventView) LateText() string {
	if v.Late == nil {
		return ""
	}
	return eventLate(time.Duration(*v.Late))
}

// IsLate reports whether the lateness of the firing is marked.
func (v EventView) IsLate() bool { return v.Late != nil && time.Duration(*v.Late) >= lateAfter }

// AttemptText returns the number of the attempt, and the most attempts.
func (v EventView) AttemptText() string { return attemptText(v.Attempt, v.Of) }

// IsDead reports whether the message is a dead letter.
func (v EventView) IsDead() bool { return v.Kind == keys.Dead }

// FiringView is a firing as the overview shows it.
type FiringView = EventView

// Position names the stream of a message and its number there.
func (v EventView) Position() string { return v.Stream + " " + grouped(int64(v.Seq)) }

// SeqText returns the message's number in its stream.
func (v EventView) SeqText() string { return strconv.FormatUint(v.Seq, 10) }
