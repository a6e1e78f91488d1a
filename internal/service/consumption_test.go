package service

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// A timerd stores failures, and numbers of waiting events, even at its end; the history is bounded.
func TestConsumptionIsStored(t *testing.T) {
	t.Parallel()
	state := jetstream.StreamConfig{Name: "TIMERS_STATE", Subjects: []string{"timers.state.>"}, MaxMsgsPerSubject: 1}
	js := testenv.NATS(t).JetStream()
	if err := streams.Ensure(t.Context(), js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), state); err != nil { // as the losses do
		t.Fatal(err)
	}
	mine := jetstream.ConsumerConfig{Durable: "mine", AckPolicy: jetstream.AckExplicitPolicy}
	if _, err := js.CreateConsumer(t.Context(), "TIMERS", mine); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "timers.fired.a.b.c", []byte("x")); err != nil {
		t.Fatal(err)
	}
	c := newConsumption(js, streams.Config{}, "a", slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.run(ctx)
	}()
	said := func(good func(*streams.Consumers) bool) {
		t.Helper()
		testenv.Eventually(t, time.Minute, func() error {
			all, err := streams.ReadConsumers(t.Context(), js, streams.Config{})
			if err == nil && (all == nil || !good(all)) {
				err = fmt.Errorf("said: %+v", all)
			}
			return err
		}, "it to be said")
	}
	said(func(all *streams.Consumers) bool {
		return len(all.Samples["mine"]) == 1 && all.Samples["mine"][0].Waiting == 1
	})
	now := time.Now()
	key := keys.Key{App: "a", Module: "b", Type: "c", ID: "1"}
	for i := range 2000 {
		c.noteFailed(streams.Failure{Key: key, Consumer: fmt.Sprint("consumer ", i), At: now, Error: "502"})
	}
	c.noteFailed(streams.Failure{Key: key, At: now})
	cancel()
	<-ended
	said(func(all *streams.Consumers) bool {
		return len(all.Failed) == 500 && all.Failed["consumer 7"].Since(streams.Minute(now)) == 1 &&
			all.Unnamed["a:b:c"].Since(0) == 1 && len(all.Errors) == 500 && all.Errors["consumer 7"].Error == "502"
	})
	c.known.Forget(now.Add(2 * time.Hour))
	if k := c.known; len(k.Samples)+len(k.Failed)+len(k.Unnamed)+len(k.Errors) > 0 {
		t.Errorf("after two hours: %+v", k)
	}
	if err := streams.PurgeConsumers(t.Context(), js, streams.Config{}); err != nil {
		t.Error(err)
	}
}
