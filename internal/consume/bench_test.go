package consume_test

import (
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/consume"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// pythonHandler answers each event, as the README's example does.
const pythonHandler = `
import json, sys
for line in sys.stdin:
    event = json.loads(line)
    print(json.dumps({"id": event["id"], "result": "done"}), flush=True)
`

// BenchmarkConsume compares events a second of the Go client with those of a child in Python, with 64 events in hand
// and with one:
//
//	go test ./internal/consume -run '^$' -bench Consume -benchtime 50000x
func BenchmarkConsume(b *testing.B) {
	python, err := exec.LookPath("python3")
	if err != nil {
		b.Fatal(err)
	}
	for _, concurrency := range []int{64, 1} {
		b.Run(fmt.Sprintf("go-%d", concurrency), func(b *testing.B) {
			benchmarkConsume(b, concurrency, func(ctx context.Context, c *client.Consumer) error {
				return c.Consume(ctx, "*", func(context.Context, client.Event) error { return nil })
			})
		})
		b.Run(fmt.Sprintf("python-%d", concurrency), func(b *testing.B) {
			benchmarkConsume(b, concurrency, func(ctx context.Context, c *client.Consumer) error {
				w := consume.Worker{Command: []string{python, "-c", pythonHandler}, Logger: c.Logger}
				return w.Run(ctx, c, "*")
			})
		})
	}
}

// benchmarkConsume measures from the start of run until b.N events are acknowledged.
func benchmarkConsume(b *testing.B, concurrency int, run func(context.Context, *client.Consumer) error) {
	server := testenv.NATS(b)
	js := server.JetStream()
	stream, err := js.CreateStream(b.Context(), jetstream.StreamConfig{
		Name: "TIMERS", Subjects: []string{keys.SubjectAll("timers", keys.Fired)},
	})
	if err != nil {
		b.Fatal(err)
	}
	var failed atomic.Pointer[error]
	for i := range b.N {
		k := keys.Key{App: "shop", Module: "order", Type: "timeout", ID: fmt.Sprint(i)}
		m := fired(k, []byte(`{"order":42,"total":"99.00"}`))
		if _, err := js.PublishMsgAsync(m); err != nil {
			b.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	c := client.NewConsumer(server.JetStream())
	c.Concurrency, c.Logger = concurrency, slog.New(slog.DiscardHandler)
	b.ResetTimer()
	go func() {
		defer close(ended)
		if err := run(ctx, c); err != nil {
			failed.Store(&err)
		}
	}()
	testenv.Eventually(b, patience, func() bool {
		all, err := stream.Consumer(b.Context(), "timerd")
		return failed.Load() != nil || err == nil && all.CachedInfo().AckFloor.Stream >= uint64(b.N)
	}, "all events acknowledged")
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	cancel()
	<-ended
	if err := failed.Load(); err != nil {
		b.Fatal(*err)
	}
}
