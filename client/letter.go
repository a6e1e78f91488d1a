package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
)

// Reasons of dead letters.
const (
	reasonGivenUp   = "given up by the consumer"
	reasonMalformed = "malformed: " // and what is wrong
)

// letter is a message about an event, for timerd or the dead letters. Its forms
// are ever smaller, for an event that is itself close to the limit of NATS or of
// the letter's stream.
type letter struct {
	subject string
	forms   []func() *nats.Msg
}

// publish publishes the first form of a letter that is not too large, and waits
// until it is stored.
func (r *run) publish(ctx context.Context, l *letter) (err error) {
	for _, form := range l.forms {
		if _, err = r.js.PublishMsg(ctx, form()); !isTooLarge(err) {
			return err
		}
	}
	return err
}

// codeMessageTooLong is JetStream's error code for a message over the stream's own
// limit.
const codeMessageTooLong jetstream.ErrorCode = 10054

// isTooLarge tells whether a message was refused for its size.
func isTooLarge(err error) bool {
	var refused *jetstream.APIError
	return errors.Is(err, nats.ErrMaxPayload) || errors.As(err, &refused) && refused.ErrorCode == codeMessageTooLong
}

// retryRequest is the event as it came, on the subject where timerd takes retries,
// with the outcome's error and, for verdictRetryAfter, its delay.
func (r *run) retryRequest(msg *nats.Msg, e Event, o outcome) *letter {
	subject := e.Key.Subject(r.Prefix, keys.Retry)
	bare := func() *nats.Msg {
		m := nats.NewMsg(subject)
		m.Data = msg.Data
		m.Header.Set(event.MsgIDHeader, messageID(e.ID)+"."+keys.Retry)
		if o.verdict == verdictRetryAfter {
			m.Header.Set(event.DelayHeader, o.delay.String())
		}
		return m
	}
	whole := func() *nats.Msg {
		m := bare()
		m.Header.Set(event.ContentTypeHeader, event.ContentType)
		m.Header.Set(event.ErrorHeader, o.err)
		return m
	}
	return &letter{subject: subject, forms: []func() *nats.Msg{whole, bare}}
}

// deadLetter is the event as a dead letter. Its smallest form lacks the payload,
// and says so.
func (r *run) deadLetter(e Event, reason, lastError string) *letter {
	subject := e.Key.Subject(r.Prefix, keys.Dead)
	e.Type, e.DeadReason = event.TypeDead, reason
	withError, empty := e, e
	withError.LastError = lastError
	empty.Data, empty.Status = nil, event.StatusTooLarge
	form := func(e Event) func() *nats.Msg {
		return func() *nats.Msg {
			m := nats.NewMsg(subject)
			m.Data = e.AppendJSON(nil)
			m.Header.Set(event.MsgIDHeader, messageID(e.ID))
			return m
		}
	}
	whole := func() *nats.Msg {
		m := form(withError)()
		m.Header.Set(event.ContentTypeHeader, event.ContentType)
		return m
	}
	return &letter{subject: subject, forms: []func() *nats.Msg{whole, form(e), form(empty)}}
}

// malformed returns an event that stands for a message that is none: of a timer of
// the message's subject, named by the message's place in the stream, with the
// message as its payload.
func (r *run) malformed(msg *nats.Msg) (Event, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return Event{}, fmt.Errorf("malformed event: %w", err)
	}
	app, module, typ, err := keys.ParseSubject(msg.Subject, r.Prefix, keys.Fired)
	if err != nil {
		return Event{}, fmt.Errorf("malformed event: %w", err)
	}
	key := keys.Key{App: app, Module: module, Type: typ, ID: fmt.Sprintf("%s/%d", meta.Stream, meta.Sequence.Stream)}
	due := meta.Timestamp.Truncate(time.Millisecond)
	return Event{
		ID:      keys.EventID(key.String(), due.UnixMilli(), 1),
		Key:     key,
		Time:    due,
		Due:     due,
		Attempt: 1,
		Data:    append([]byte{}, msg.Data...),
	}, nil
}

// messageID returns the Nats-Msg-Id of a letter about an event, by which JetStream
// drops the one that a second delivery of the event would bring, and the dead
// letter that timerd makes of the same event. An id that a header cannot hold,
// which timerd never makes, is hashed.
func messageID(eventID string) string {
	odd := func(r rune) bool { return r <= ' ' || r > '~' }
	if len(eventID) > keys.MaxEventIDBytes || strings.ContainsFunc(eventID, odd) {
		sum := sha256.Sum256([]byte(eventID))
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	return eventID
}
