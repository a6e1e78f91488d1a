package notify_test

import (
	"context"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/notify"
	"github.com/timerd-io/timerd/schedule"
)

const ackWindow = 4096

// BenchmarkAcks measures the cost of publishing an event and taking its acknowledgement, with 4,096 events in flight,
// on a server in the same process:
//
//   - own: the whole Publisher, with leases, tries and settling.
//   - PublishMsgAsync: package jetstream's futures with its handlers of acknowledgements and errors, and nothing else.
//
// cpu-µs/op is the processor time of both sides. B/held is the memory of an event without an acknowledgement.
func BenchmarkAcks(b *testing.B) {
	for name, newPublish := range map[string]func(*testing.B, *nats.Conn) func([]schedule.Firing){
		"own": ownPublish, "PublishMsgAsync": asyncPublish,
	} {
		b.Run(name, func(b *testing.B) {
			server := testenv.NATS(b)
			if err := streams.Ensure(b.Context(), server.JetStream(), streams.Config{}); err != nil {
				b.Fatal(err)
			}
			proxy := testenv.NewProxy(b, server.Addr())
			held := heldBytes(b, proxy, newPublish(b, connectTo(b, "nats://"+proxy.Addr())))
			publish := newPublish(b, connectTo(b, server.URL()))
			first := 1_000_000
			b.ReportAllocs()
			began := processorTime(b)
			for b.Loop() {
				publish(dueFirings(first, 1))
				first++
			}
			b.ReportMetric(float64((processorTime(b)-began).Nanoseconds())/1e3/float64(b.N), "cpu-µs/op")
			b.ReportMetric(held, "B/held")
		})
	}
}

// processorTime returns the processor time used by the process.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func connectTo(b *testing.B, url string) *nats.Conn {
	b.Helper()
	nc, err := nats.Connect(url, connect.NATSOptions()...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(nc.Close)
	return nc
}

// heldBytes returns the memory per event of a full window while no acknowledgement comes.
func heldBytes(b *testing.B, proxy *testenv.Proxy, publish func([]schedule.Firing)) float64 {
	b.Helper()
	firings := dueFirings(0, ackWindow)
	publish(dueFirings(ackWindow, 1))
	var before, after runtime.MemStats
	proxy.Delay(2 * time.Second)
	runtime.GC()
	runtime.ReadMemStats(&before)
	publish(firings)
	runtime.GC()
	runtime.ReadMemStats(&after)
	proxy.Heal()
	runtime.KeepAlive(firings)
	return float64(int64(after.HeapAlloc)-int64(before.HeapAlloc)) / ackWindow
}

var ackPayload = []byte(strings.Repeat("x", 200))

// dueFirings returns n distinct firings, numbered from first.
func dueFirings(first, n int) []schedule.Firing {
	now := time.Now()
	firings := make([]schedule.Firing, n)
	for i := range firings {
		firings[i] = schedule.Firing{
			Key: keys.Key{App: "app1", Module: "trans", Type: "notice", ID: "1615283234"},
			Due: schedule.Millis(first + i), Payload: ackPayload,
			Trigger: schedule.TriggerDeadline, ClaimedAt: now, Received: now, Lease: time.Minute,
		}
	}
	return firings
}

func ownPublish(b *testing.B, nc *nats.Conn) func([]schedule.Firing) {
	b.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		b.Fatal(err)
	}
	p := notify.NewPublisher(nc, js, idleSettler{})
	p.Window = ackWindow
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	})
	return func(firings []schedule.Firing) {
		if err := p.Publish(ctx, firings); err != nil {
			b.Error(err)
		}
	}
}

func asyncPublish(b *testing.B, nc *nats.Conn) func([]schedule.Firing) {
	b.Helper()
	slots := make(chan struct{}, ackWindow)
	js, err := jetstream.New(nc,
		jetstream.WithPublishAsyncMaxPending(ackWindow),
		jetstream.WithPublishAsyncTimeout(time.Minute),
		jetstream.WithPublishAsyncAckHandler(func(jetstream.JetStream, *nats.Msg, *jetstream.PubAck) { <-slots }),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, _ *nats.Msg, err error) {
			b.Errorf("publishing: %v", err)
			<-slots
		}))
	if err != nil {
		b.Fatal(err)
	}
	var names keys.Names
	return func(firings []schedule.Firing) {
		for i := range firings {
			f := &firings[i]
			id := keys.EventID(f.Key.String(), int64(f.Due), 1)
			e := event.Event{
				ID: id, Type: event.TypeFired, Key: f.Key, Time: f.Now(), Due: f.Due.Time(), Attempt: 1, MaxAttempts: 1,
				Trigger: string(f.Trigger), Data: f.Payload,
			}
			// The library keeps the message until its acknowledgement, so no part can be reused before.
			m := &nats.Msg{
				Subject: names.Subject(f.Key, keys.Fired),
				Header:  nats.Header{event.MsgIDHeader: {id}, event.ContentTypeHeader: {event.ContentType}},
				Data:    e.AppendJSON(nil),
			}
			slots <- struct{}{}
			if _, err := js.PublishMsgAsync(m, jetstream.WithRetryAttempts(0)); err != nil {
				b.Error(err)
			}
		}
	}
}
