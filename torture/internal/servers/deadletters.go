package servers

import (
	"context"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// FillDeadLetters makes the stream of dead letters accept no more messages.
func (n *NATS) FillDeadLetters(ctx context.Context) error {
	return n.limitDeadLetters(ctx, func(has uint64) int64 { return int64(max(has, 1)) })
}

// EmptyDeadLetters makes the stream of dead letters accept all messages again.
func (n *NATS) EmptyDeadLetters(ctx context.Context) error {
	return n.limitDeadLetters(ctx, func(uint64) int64 { return -1 })
}

// limitDeadLetters sets the stream's limit of messages. limit gets the present number of messages.
func (n *NATS) limitDeadLetters(ctx context.Context, limit func(has uint64) int64) error {
	nc, err := nats.Connect(n.URL())
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	stream, err := js.Stream(ctx, history.DeadStream)
	if err != nil {
		return err
	}
	config := stream.CachedInfo().Config
	config.Discard, config.MaxMsgs = jetstream.DiscardNew, limit(stream.CachedInfo().State.Msgs)
	_, err = js.UpdateStream(ctx, config)
	return err
}
