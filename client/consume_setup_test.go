package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// patience bounds every wait of the tests.
const patience = time.Minute

// shortAckWait is long enough for a busy machine to move a deadline on in time, and short enough to wait for its end.
const shortAckWait = 2 * time.Second

// longAckWait is for tests in which it may not end, however busy the machine is.
const longAckWait = 5 * time.Second

// bench is a NATS server with timerd's streams, and the messages of consumers.
type bench struct {
	t     testing.TB
	nats  *testenv.NATSServer
	js    jetstream.JetStream
	retry *testenv.Collector
	dead  *testenv.Collector
}

func newBench(t testing.TB, opts ...testenv.NATSOption) *bench {
	t.Helper()
	b := &bench{t: t, nats: testenv.NATS(t, opts...)}
	b.js = b.nats.JetStream()
	makeStreams(t, b.js)
	b.retry = testenv.Collect(t, b.js, "TIMERS_RETRY")
	b.dead = testenv.Collect(t, b.js, "TIMERS_DEAD")
	return b
}

// makeStreams makes the streams as timerd would, but for the retries being kept, so that a collector can read them.
func makeStreams(t testing.TB, js jetstream.JetStream) {
	t.Helper()
	for name, subject := range map[string]string{
		"TIMERS":       keys.SubjectAll("timers", keys.Fired),
		"TIMERS_RETRY": keys.SubjectAll("timers", keys.Retry),
		"TIMERS_DEAD":  keys.SubjectAll("timers", keys.Dead),
	} {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name,
			Subjects: []string{subject}}); err != nil {
			t.Fatal(err)
		}
	}
}

// fired returns the event of a firing, as timerd publishes it.
func fired(key string, data []byte) client.Event {
	k, err := keys.Parse(key)
	if err != nil {
		panic(err)
	}
	due := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	return client.Event{
		ID: keys.EventID(key, due.UnixMilli(), 1), Type: event.TypeFired, Key: k,
		Time: due.Add(3 * time.Millisecond), Due: due, Attempt: 1, MaxAttempts: 16, Trigger: "deadline", Data: data,
	}
}

// publish publishes events as timerd does.
func (b *bench) publish(events ...client.Event) {
	b.t.Helper()
	for _, e := range events {
		m := nats.NewMsg(e.Key.Subject("timers", keys.Fired))
		m.Data = e.AppendJSON(nil)
		m.Header.Set(event.MsgIDHeader, e.ID)
		m.Header.Set(event.ContentTypeHeader, event.ContentType)
		if _, err := b.js.PublishMsg(b.t.Context(), m); err != nil {
			b.t.Fatal(err)
		}
	}
}

// consuming is a Consume that runs in the background until the test ends.
type consuming struct {
	t      testing.TB
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// consume starts to consume everything, on a connection of its own, with changes to the consumer.
func (b *bench) consume(handler client.Handler, configure ...func(*client.Consumer)) *consuming {
	b.t.Helper()
	return b.consumeOn(b.nats.JetStream(), handler, configure...)
}

func (b *bench) consumeOn(js jetstream.JetStream, handler client.Handler,
	configure ...func(*client.Consumer)) *consuming {
	b.t.Helper()
	c := client.NewConsumer(js)
	c.AckWait = shortAckWait
	c.Logger = slog.New(slog.NewTextHandler(b.t.Output(), nil))
	for _, f := range configure {
		f(c)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.t.Context()))
	running := &consuming{t: b.t, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(running.done)
		running.err = c.Consume(ctx, "*", handler)
	}()
	b.t.Cleanup(func() {
		cancel()
		<-running.done
		if b.t.Failed() {
			b.t.Logf("Consume returned %v", running.err)
		}
	})
	return running
}

// stop stops the consumer and returns what Consume returned.
func (c *consuming) stop() error {
	c.t.Helper()
	c.cancel()
	return c.wait()
}

// wait waits for Consume to return.
func (c *consuming) wait() error {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(patience):
		c.t.Fatal("Consume does not return")
	}
	return c.err
}

// settled waits until the durable consumer has every event of the stream acknowledged.
func (b *bench) settled(durable string) {
	b.t.Helper()
	testenv.Eventually(b.t, patience, func() error {
		stream, err := b.js.Stream(b.t.Context(), "TIMERS")
		if err != nil {
			return err
		}
		c, err := stream.Consumer(b.t.Context(), durable)
		if err != nil {
			return err
		}
		last, info := stream.CachedInfo().State.LastSeq, c.CachedInfo()
		if info.AckFloor.Stream < last {
			err = fmt.Errorf("acknowledged up to %d of %d, %d in work", info.AckFloor.Stream, last, info.NumAckPending)
		}
		return err
	}, "every event acknowledged")
}

// unacknowledged returns the number of the durable consumer's unacknowledged events.
func (b *bench) unacknowledged(durable string) int {
	b.t.Helper()
	return b.info(durable).NumAckPending
}

// deliveries returns the number of the durable consumer's deliveries.
func (b *bench) deliveries(durable string) uint64 {
	b.t.Helper()
	return b.info(durable).Delivered.Consumer
}

func (b *bench) info(durable string) *jetstream.ConsumerInfo {
	b.t.Helper()
	c, err := b.js.Consumer(b.t.Context(), "TIMERS", durable)
	if err != nil {
		b.t.Fatal(err)
	}
	return c.CachedInfo()
}

// take receives from c, or ends the test.
func take[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("no %s within %v", what, patience)
	}
	panic("unreachable")
}

// counter counts by name, for handlers.
type counter struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counter) add(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = make(map[string]int)
	}
	c.n[name]++
	return c.n[name]
}

func (c *counter) all() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.n)
}

// deadEvent reads a dead letter, and requires it to be a CloudEvent that encoding/json reads too.
func deadEvent(t testing.TB, m testenv.Message) client.Event {
	t.Helper()
	e, err := event.Parse(m.Data)
	if err == nil && (e.Type != event.TypeDead || !json.Valid(m.Data)) {
		err = errors.New("not a dead letter")
	}
	if err != nil {
		t.Fatalf("dead letter %q: %v", m.Data, err)
	}
	return e
}
