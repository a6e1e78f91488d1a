// Package letter publishes messages about an event, in the largest form that gets through.
package letter

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
)

// Publish publishes the first of ever smaller forms of a message that is not too large, and waits until it is stored.
func Publish(ctx context.Context, js jetstream.JetStream, forms iter.Seq[event.Message], opts ...jetstream.PublishOpt) (err error) {
	for m := range forms {
		_, err = js.PublishMsg(ctx, &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}, opts...)
		if err != nil {
			err = fmt.Errorf("publish to %s: %w", m.Subject, err)
		}
		if !IsTooLarge(err) {
			break
		}
	}
	return err
}

// codeMessageTooLong is JetStream's error code for a message over the stream's own limit.
const codeMessageTooLong jetstream.ErrorCode = 10054

// IsTooLarge tells whether a message was refused for its size, by NATS or by the stream.
func IsTooLarge(err error) bool {
	refused, ok := errors.AsType[*jetstream.APIError](err)
	return errors.Is(err, nats.ErrMaxPayload) || ok && refused.ErrorCode == codeMessageTooLong
}
