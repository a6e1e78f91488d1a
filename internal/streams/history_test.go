package streams_test

import (
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
)

// The first entry makes the stream, whoever writes it; of an account with little room it takes little.
func TestWriteHistory(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	nats.Limit(func(l *server.JetStreamAccountLimits) { l.MaxStore = 10 << 20 })
	js := nats.JetStream()
	ctx := t.Context()
	entries := []event.Entry{
		{Kind: event.EntryGuarded, Subjects: []string{"shop:order:timeout:42%0A"}, Time: time.Now()},
		{Kind: event.EntryHold, Namespace: "shop", Time: time.Now()},
		{Kind: event.EntryCancel, Subjects: []string{"shop:order:timeout:42"}, Time: time.Now()},
	}
	var writers sync.WaitGroup
	for _, e := range entries {
		writers.Go(func() {
			if err := streams.WriteHistory(ctx, js, streams.Config{}, e); err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()
	stream, err := js.Stream(ctx, "TIMERS_HISTORY")
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		t.Fatal(err)
	}
	if c := info.Config; c.MaxAge != 30*24*time.Hour || c.MaxBytes != 8<<20 || c.Discard != jetstream.DiscardOld {
		t.Errorf("%+v", c)
	}
	for _, subject := range []string{"timers.history.shop.order.timeout", "timers.history.operator.hold",
		"timers.history.operator.cancel"} {
		if info.State.Subjects[subject] != 1 {
			t.Errorf("%s: %v", subject, info.State.Subjects)
		}
	}
	if err := streams.WriteHistory(ctx, js, streams.Config{}, event.Entry{Kind: event.EntryDropped}); err == nil {
		t.Error("an end without a timer was stored")
	}
}
