// Package deadletter publishes dead letters, and other messages about an event, in the largest form that NATS accepts.
package deadletter

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
)

// PublishLargest publishes the first of ever smaller forms of a message that NATS accepts, and waits until it is
// stored.
func PublishLargest(ctx context.Context, js jetstream.JetStream, forms iter.Seq[event.Message],
	opts ...jetstream.PublishOpt) (ack *jetstream.PubAck, err error) {
	for m := range forms {
		ack, err = js.PublishMsg(ctx, &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}, opts...)
		if err != nil {
			err = fmt.Errorf("publish to %s: %w", m.Subject, err)
		}
		if !IsTooLarge(err) {
			break
		}
	}
	return ack, err
}

// freshIDs limits the further ids that a dead letter tries, beside its own, before it is published without an id.
const freshIDs = 3

// Publish publishes e, whose DeadReason is set, as a dead letter and waits until it is stored: once, however often it
// is called within the stream's duplicate window. prefix begins the subjects.
//
// If JetStream reports a duplicate, Publish compares the stored letter: anybody with the right to publish a dead letter
// could have used this one's id. If the stored letter is another one, or gone, this one is published under an id
// derived from its content. If the stored letter cannot be read for want of a right, it counts as this one. An error
// may mean that reading it failed this time: call Publish again.
func Publish(ctx context.Context, js jetstream.JetStream, prefix string, e event.Event,
	opts ...jetstream.PublishOpt) error {
	forms := event.DeadLetter(prefix, e)
	e.Type = event.TypeDead
	for n := range freshIDs + 1 {
		ack, err := PublishLargest(ctx, js, under(forms, e, n), opts...)
		if err != nil || !ack.Duplicate {
			return err
		}
		same, err := isStored(ctx, js, ack, e.Key.Subject(prefix, keys.Dead), e)
		switch {
		case isSlow(js.Conn(), ack.Stream, err):
			return fmt.Errorf("read the stored dead letter with the same id: %w", err)
		case same, err != nil && n > 0:
			return ctx.Err()
		}
	}
	_, err := PublishLargest(ctx, js, under(forms, e, freshIDs+1), opts...)
	return err
}

// under yields the forms of a dead letter: with its own id for n = 0, with a fresh one up to freshIDs, and without one
// beyond.
func under(forms iter.Seq[event.Message], e event.Event, n int) iter.Seq[event.Message] {
	return func(yield func(event.Message) bool) {
		for m := range forms {
			switch {
			case n > freshIDs:
				delete(m.Header, event.MsgIDHeader)
			case n > 0:
				m.Header[event.MsgIDHeader] = []string{event.FreshLetterID(e, n)}
			}
			if !yield(m) {
				return
			}
		}
	}
}

// isStored reports whether the message in ack is a letter for e on that subject. If the message is missing, isStored
// returns false. An error means that the message cannot be read.
func isStored(ctx context.Context, js jetstream.JetStream, ack *jetstream.PubAck, subject string,
	e event.Event) (bool, error) {
	if deadline, ok := ctx.Deadline(); ok { // leave time for the rest
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/3)
		defer cancel()
	}
	stream, err := js.Stream(ctx, ack.Stream)
	if err != nil {
		return false, err
	}
	m, err := stream.GetMsg(ctx, ack.Sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	stored, err := event.Parse(m.Data)
	return err == nil && m.Subject == subject && event.SameLetter(stored, e), nil
}

// isSlow reports whether an error means that JetStream did not answer in time about a stream. A user without the right
// to ask gets no answer either, but then the connection's last error names the stream.
func isSlow(nc *nats.Conn, stream string, err error) bool {
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout) {
		return false
	}
	last := nc.LastError()
	return !errors.Is(last, nats.ErrPermissionViolation) || !strings.Contains(last.Error(), "."+stream)
}

// codeMessageTooLong is JetStream's error code for a message over the stream's own limit.
const codeMessageTooLong jetstream.ErrorCode = 10054

// IsTooLarge reports whether a message was refused for its size, by NATS or by the stream.
func IsTooLarge(err error) bool {
	refused, ok := errors.AsType[*jetstream.APIError](err)
	return errors.Is(err, nats.ErrMaxPayload) || ok && refused.ErrorCode == codeMessageTooLong
}
