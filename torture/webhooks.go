package main

import (
	"context"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/torture/internal/history"
)

// delivery reads one message of the log of deliveries.
func delivery(msg jetstream.Msg, meta *jetstream.MsgMetadata) history.Delivery {
	r, err := event.ParseDelivery(msg.Data())
	if err != nil {
		return history.Delivery{Fault: err.Error(), Stored: meta.Timestamp.UnixMilli()}
	}
	return history.Delivery{
		ID: r.ID, Origin: r.Origin, Key: r.Subject, Attempt: r.Attempt, Host: r.Host, Status: r.Status,
		Result: history.Result(r.Result),
		Error:  r.Error, Time: r.Time.UnixMilli(), Took: r.Duration, Stored: meta.Timestamp.UnixMilli(),
	}
}

// undelivered returns the number of events that the consumers of timerd deliver have not settled yet.
func undelivered(ctx context.Context, url string) (n int64, err error) {
	nc, err := nats.Connect(url)
	if err != nil {
		return 0, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return 0, err
	}
	stream, err := js.Stream(ctx, history.FiredStream)
	if err != nil {
		return 0, err
	}
	all := stream.ListConsumers(ctx)
	for info := range all.Info() {
		if strings.HasPrefix(info.Name, keys.DeliverDurable) {
			n += int64(info.NumPending) + int64(info.NumAckPending)
		}
	}
	return n, all.Err()
}
