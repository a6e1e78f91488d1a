package notify

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"strings"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// What DeadReason says in the dead letters that timerd makes.
const (
	// ReasonExhausted is the whole reason.
	ReasonExhausted = "attempts used up"
	// ReasonMalformed begins the reason of a retry request that holds no timer. Its
	// letter has the request as it came for a payload, and the name of its place in
	// the stream for a timer id.
	ReasonMalformed = "malformed: "
	// ReasonRefused begins the reason of a retry request whose timer is all right
	// but whose headers are not. Its letter is that of the timer.
	ReasonRefused = "refused: "
)

// maxReasonBytes bounds texts that say what is wrong.
const maxReasonBytes = 1024

// letter is a dead letter to publish.
type letter struct {
	event   event.Event // its id is that of the message
	subject string
	class   DeadClass
	request string // where the request is: its subject and place in the stream
}

// forms yields the letter in ever smaller forms, for NATS lets only so much
// through: as it is, with a short LastError, and at last without that and with less
// and less of the payload. What a timer has for a payload is never cut, but left out
// as a whole.
func (l *letter) forms() iter.Seq[event.Event] {
	return func(yield func(event.Event) bool) {
		e := l.event
		if !yield(e) {
			return
		}
		e.LastError = clipText(e.LastError)
		if !yield(e) {
			return
		}
		e.LastError, e.Trigger = "", ""
		if !strings.HasPrefix(e.DeadReason, ReasonMalformed) {
			e.Data, e.Status = nil, event.StatusTooLarge
			yield(e)
			return
		}
		size := len(e.Data)
		for room := size / 2; yield(e) && room > 0; room /= 2 {
			e.Data = l.event.Data[:room]
			e.DeadReason = fmt.Sprintf("%s (cut to %d of %d bytes)", l.event.DeadReason, room, size)
		}
	}
}

// exhausted is the letter of an event whose attempts are used up.
func exhausted(s Streams, r request, e event.Event, maxAttempts int) *letter {
	e.ID, e.Type, e.MaxAttempts = messageID(e.ID), event.TypeDead, maxAttempts
	e.DeadReason, e.LastError = ReasonExhausted, r.lastError()
	return &letter{event: e, subject: s.Subject(e.Key, keys.Dead), class: DeadExhausted, request: r.name()}
}

// malformed is the letter of a request that holds no timer: of a timer that stands
// for the request.
func malformed(s Streams, r request, fault error) *letter {
	k := r.key(s.prefix())
	return &letter{
		event: event.Event{
			ID:         r.id(k),
			Type:       event.TypeDead,
			Key:        k,
			Time:       r.stored,
			Due:        r.stored,
			Attempt:    1,
			Data:       append([]byte{}, r.data...),
			DeadReason: ReasonMalformed + clipText(fault.Error()),
			LastError:  r.lastError(),
		},
		subject: s.Subject(k, keys.Dead),
		class:   DeadMalformed,
		request: r.name(),
	}
}

// refused is the letter of a request whose headers make no sense. Its id is the
// request's, so that each one has its letter.
func refused(s Streams, r request, e event.Event, fault error) *letter {
	e.ID, e.Type = r.id(r.key(s.prefix())), event.TypeDead
	e.DeadReason, e.LastError = ReasonRefused+clipText(fault.Error()), r.lastError()
	return &letter{event: e, subject: s.Subject(e.Key, keys.Dead), class: DeadMalformed, request: r.name()}
}

// Replay returns the timer of a dead letter, to be set again at due as attempt 1.
// However often that of one letter is set, it fires once: for as long as retries are
// remembered, a day at least.
func Replay(e event.Event, due int64) schedule.Retry {
	return schedule.Retry{
		EventID: retryID(e) + ".replay",
		Key:     e.Key,
		Due:     due,
		Attempt: 1,
		Payload: e.Data,
		Status:  statusOf(e),
	}
}

// messageID returns an event's id as a header can hold it. One that timerd made is
// returned as it is.
func messageID(id string) string {
	odd := func(r rune) bool { return r <= ' ' || r > '~' }
	if len(id) > keys.MaxEventIDBytes || strings.ContainsFunc(id, odd) {
		sum := sha256.Sum256([]byte(id))
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	return id
}

// clipText shortens a text for people to maxReasonBytes.
func clipText(s string) string {
	const ellipsis = "…"
	if len(s) <= maxReasonBytes {
		return s
	}
	return strings.ToValidUTF8(s[:maxReasonBytes-len(ellipsis)], "") + ellipsis
}
