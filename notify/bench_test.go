package notify_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/notify"
	"github.com/timerd-io/timerd/schedule"
)

// idleSettler is a Settler that does nothing.
type idleSettler struct{}

func (idleSettler) ServerOf(keys.Partition) string { return "" }

func (idleSettler) Settle(context.Context, []schedule.Outcome) error  { return nil }
func (idleSettler) Release(context.Context, []schedule.Outcome) error { return nil }

// BenchmarkPublish publishes firings with 200-byte payloads in batches of 128, as fast as an in-process server takes
// them.
func BenchmarkPublish(b *testing.B) {
	server := testenv.NATS(b)
	nc, err := nats.Connect(server.URL(), connect.NATSOptions()...)
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		b.Fatal(err)
	}
	if err := streams.Ensure(b.Context(), js, streams.Config{}); err != nil {
		b.Fatal(err)
	}
	p := notify.NewPublisher(nc, js, idleSettler{})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()

	const batch = 128
	payload := make([]byte, 200)
	for i := range payload {
		payload[i] = 'x'
	}
	due := time.Now().UnixMilli() - 1_000_000_000
	firings := make([]schedule.Firing, batch)
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N; done += batch {
		if err := p.Wait(ctx, ""); err != nil {
			b.Fatal(err)
		}
		now := time.Now()
		for i := range firings {
			due++
			firings[i] = schedule.Firing{
				Key: keys.Key{App: "app1", Module: "trans", Type: "notice", ID: "1615283234"},
				Due: schedule.Millis(due), Payload: payload,
				Trigger: schedule.TriggerDeadline, ClaimedAt: now, Received: now, Lease: 10 * time.Second,
			}
		}
		if err := p.Publish(ctx, firings); err != nil {
			b.Fatal(err)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "firings/s")
}
