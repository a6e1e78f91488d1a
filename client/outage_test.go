package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
)

// A handler may take many times AckWait: nobody else gets its event meanwhile.
func TestDeadlineIsMovedOnWhileAHandlerWorks(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	quick := func(c *client.Consumer) { c.AckWait = longAckWait }
	b.publish(fired("shop:order:timeout:42", nil))
	calls := make(chan time.Time, 10)
	release := make(chan struct{})
	handler := func(context.Context, client.Event) error {
		calls <- time.Now()
		<-release
		return nil
	}
	b.consume(handler, quick)
	b.consume(handler, quick) // shares the durable consumer
	take(t, calls, "call")
	<-time.After(2 * longAckWait) // in which it would have been delivered again
	if n := b.deliveries("timerd"); n != 1 || len(calls) > 0 {
		t.Errorf("%d deliveries, %d more calls while the handler worked", n, len(calls))
	}
	close(release)
	b.settled("timerd")
}

// A consumer that dies loses nothing: its event goes to another one, still with the same attempt.
func TestCrashCostsNoAttempt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.publish(fired("shop:order:timeout:42", nil))
	proxy := testenv.NewProxy(t, b.nats.Addr())
	js := b.nats.JetStream(testenv.Through(proxy), nats.NoReconnect())
	began := make(chan struct{}, 1)
	dead := b.consumeOn(js, func(ctx context.Context, _ client.Event) error {
		began <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}, func(c *client.Consumer) { c.StopTimeout = -1 })
	take(t, began, "call of the first consumer")
	proxy.Cut() // as a crash looks to everybody else
	if err := dead.wait(); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("Consume on a lost connection = %v, want that it is closed", err)
	}

	got := make(chan client.Event, 2)
	b.consume(func(_ context.Context, e client.Event) error { got <- e; return nil })
	if e := take(t, got, "second delivery"); e.Attempt != 1 {
		t.Errorf("attempt %d after a crash, want 1", e.Attempt)
	}
	b.settled("timerd")
	if n := b.retry.Len(); n != 0 {
		t.Errorf("%d retries after a crash, want none", n)
	}
}

// NATS goes and comes back, in the middle of handlers and between events: each event is handled once, and the handlers'
// decisions are carried out after the return.
func TestConsumeSurvivesRestartsOfNATS(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]nats.Option{
		"buffered":   nil,
		"unbuffered": {nats.ReconnectBufSize(-1)}, // publishing fails while NATS is away
	} {
		t.Run(name, func(t *testing.T) { consumeThroughRestarts(t, opts...) })
	}
}

func consumeThroughRestarts(t *testing.T, opts ...nats.Option) {
	b := newBench(t)
	var calls counter
	began, release := make(chan struct{}, 10), make(chan struct{})
	c := b.consumeOn(b.nats.JetStream(opts...), func(_ context.Context, e client.Event) error {
		calls.add(e.Key.ID)
		if e.Key.Module == "slow" {
			began <- struct{}{}
			<-release
			return errors.New("no")
		}
		return nil
	}, func(c *client.Consumer) { c.AckWait = patience })
	b.publish(fired("shop:slow:timeout:1", nil), fired("shop:slow:timeout:2", nil))
	take(t, began, "call")
	take(t, began, "call")

	b.nats.Stop()
	close(release) // the verdicts fall while NATS is away
	b.nats.Start()
	b.asked(2)
	for round := range 3 {
		id := fmt.Sprintf("after %d", round)
		testenv.Eventually(t, patience, func() error {
			_, err := b.js.Publish(t.Context(), "timers.fired.shop.order.timeout",
				fired("shop:order:timeout:"+id, nil).AppendJSON(nil), jetstream.WithMsgID(id))
			return err
		}, "publishing after a restart")
		testenv.Eventually(t, patience, func() bool { return calls.all()[id] > 0 }, "the event "+id)
		b.nats.Restart()
	}
	b.settled("timerd")
	for id, n := range calls.all() {
		if n != 1 {
			t.Errorf("event %q handled %d times, want once", id, n)
		}
	}
	if err := c.stop(); err != nil {
		t.Errorf("Consume = %v", err)
	}
}

// Connections break all the time while events come in: all are handled.
func TestConsumeSurvivesCutConnections(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	proxy := testenv.NewProxy(t, b.nats.Addr())
	js := b.nats.JetStream(testenv.Through(proxy), nats.ReconnectWait(5*time.Millisecond))
	var calls counter
	b.consumeOn(js, func(_ context.Context, e client.Event) error {
		calls.add(e.ID)
		if rand.IntN(4) == 0 {
			return errors.New("no")
		}
		return nil
	})
	const n = 200
	b.publish(fired("shop:order:timeout:0", nil))
	b.settled("timerd")
	for i := 1; i < n; i++ {
		b.publish(fired(fmt.Sprintf("shop:order:timeout:%d", i), nil))
		if i%20 == 10 {
			proxy.Drop()
		}
	}
	b.settled("timerd")
	if got := len(calls.all()); got != n {
		t.Errorf("%d events handled, want %d", got, n)
	}
}

// While timerd's retry stream cannot take a request, the event is neither lost nor handled again.
func TestRetryWaitsForItsStream(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if err := b.js.DeleteStream(t.Context(), "TIMERS_RETRY"); err != nil {
		t.Fatal(err)
	}
	var calls counter
	called := make(chan struct{}, 10)
	var log syncBuffer
	b.consume(func(context.Context, client.Event) error {
		calls.add("")
		called <- struct{}{}
		return errors.New("no")
	}, func(c *client.Consumer) {
		c.AckWait = longAckWait
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	b.publish(fired("shop:order:timeout:42", nil))
	take(t, called, "call")
	<-time.After(2 * longAckWait) // in which it would have been delivered again
	if n := b.deliveries("timerd"); n != 1 || len(called) > 0 {
		t.Errorf("%d deliveries, %d more calls while its retry could not be stored", n, len(called))
	}
	if n := b.unacknowledged("timerd"); n != 1 {
		t.Errorf("%d events unacknowledged, want 1", n)
	}
	if _, err := b.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "TIMERS_RETRY",
		Subjects: []string{"timers.retry.>"}}); err != nil {
		t.Fatal(err)
	}
	testenv.Collect(t, b.js, "TIMERS_RETRY").Wait(1, patience)
	b.settled("timerd")
	if n := calls.all()[""]; n != 1 {
		t.Errorf("%d calls, want 1", n)
	}
	if !strings.Contains(log.String(), "asking for a retry") ||
		!strings.Contains(log.String(), "key=shop:order:timeout:42") {
		t.Errorf("log:\n%s", log.String())
	}
}

// A redelivered event makes no second dead letter. It may ask for a second retry, which timerd tells by the event's id.
func TestRedeliveryMakesNoSecondLetter(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	e := fired("shop:order:timeout:42", nil)
	b.publish(e)
	for _, durable := range []string{"one", "two"} { // two deliveries of one event
		b.consume(func(context.Context, client.Event) error { return client.Dead(errors.New(durable)) },
			func(c *client.Consumer) { c.Durable = durable })
		b.settled(durable)
	}
	b.dead.Stays(1, 200*time.Millisecond)
}

// Somebody else's dead letter with the id of an event does not keep that event's own away, with and without the right
// to read the stored one.
func TestForgedLetterID(t *testing.T) {
	t.Parallel()
	for name, deny := range map[string][]string{"may read": nil,
		"may not read": {"$JS.API.STREAM.>", "$JS.API.DIRECT.>"}} {
		t.Run(name, func(t *testing.T) {
			b := &bench{t: t, nats: testenv.NATS(t, func(o *server.Options) {
				o.Users = []*server.User{
					{Username: "admin", Password: "a"},
					{Username: "app", Password: "b", Permissions: &server.Permissions{
						Publish: &server.SubjectPermission{Deny: deny}}},
				}
			})}
			b.js = b.nats.JetStream(nats.UserInfo("admin", "a"))
			makeStreams(t, b.js)
			b.dead = testenv.Collect(t, b.js, "TIMERS_DEAD")
			e := fired("shop:order:timeout:42", nil)
			forged := fired("evil:order:timeout:42", nil)
			forged.ID, forged.Type = e.ID, event.TypeDead
			if _, err := b.js.Publish(t.Context(), "timers.dead.evil.order.timeout", forged.AppendJSON(nil),
				jetstream.WithMsgID(e.ID)); err != nil {
				t.Fatal(err)
			}
			b.publish(e)
			js := b.nats.JetStream(nats.UserInfo("app", "b"),
				nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
			for _, durable := range []string{"one", "two"} {
				b.consumeOn(js, func(context.Context, client.Event) error { return client.Dead(nil) },
					func(c *client.Consumer) { c.Durable = durable })
				b.settled(durable)
			}
			letters := b.dead.Wait(2, patience)
			if got := deadEvent(t, letters[1]); got.Key != e.Key || got.ID != e.ID {
				t.Errorf("dead letter %+v", got)
			}
			b.dead.Stays(2, 200*time.Millisecond)
		})
	}
}

// While a process stands still, or its connection, JetStream delivers its events again. An event with a handler here,
// or acknowledged, is not handled twice.
func TestStandstillHandlesNoEventTwice(t *testing.T) {
	t.Parallel()
	const ackWait = 500 * time.Millisecond
	b := newBench(t)
	proxy := testenv.NewProxy(t, b.nats.Addr())
	js := b.nats.JetStream(testenv.Through(proxy))
	const handlers, enough = 8, 6 // deliveries: of the slow event, and again and again of both
	watch := b.nats.Conn()
	requests, err := watch.SubscribeSync("$JS.API.CONSUMER.MSG.NEXT.TIMERS.timerd")
	if err == nil {
		err = watch.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	var calls counter
	began, released := make(chan string, handlers), make(chan struct{})
	release := sync.OnceFunc(func() { close(released) })
	b.consumeOn(js, func(_ context.Context, e client.Event) error {
		calls.add(e.Key.ID)
		began <- e.Key.ID
		if e.Key.ID == "slow" {
			<-released
		}
		return nil
	}, func(c *client.Consumer) { c.AckWait, c.Concurrency = ackWait, handlers })
	t.Cleanup(release)
	b.publish(fired("shop:order:timeout:slow", nil))
	take(t, began, "call")
	for asked := map[string]int{}; ; { // by inbox, until the server has enough requests to answer
		m, err := requests.NextMsg(patience)
		if err != nil {
			t.Fatalf("requests for %v events: %v", asked, err)
		}
		var request struct{ Batch int }
		if err := json.Unmarshal(m.Data, &request); err != nil {
			t.Fatalf("request %q: %v", m.Data, err)
		}
		if asked[m.Reply] += request.Batch; asked[m.Reply] >= enough {
			break
		}
	}
	proxy.Blackhole()
	b.publish(fired("shop:order:timeout:quick", nil)) // on its way, many times over
	testenv.Eventually(t, patience, func() error {
		if n := b.deliveries("timerd"); n < enough {
			return fmt.Errorf("%d deliveries", n)
		}
		return nil
	}, "deliveries to a connection that stands still")
	proxy.Heal()
	if id := take(t, began, "call after the standstill"); id != "quick" {
		t.Errorf("event %s handled again", id)
	}
	release()
	b.settled("timerd")
	for id, n := range calls.all() {
		if n != 1 {
			t.Errorf("event %s handled %d times, want once", id, n)
		}
	}
}

// An event that was purged while its handler worked holds nothing up.
func TestPurgedEvent(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	began, release := make(chan string, 2), make(chan struct{})
	b.consume(func(_ context.Context, e client.Event) error {
		began <- e.Key.ID
		<-release
		return nil
	}, func(c *client.Consumer) { c.Concurrency, c.AckWait = 1, time.Hour })
	b.publish(fired("shop:order:timeout:1", nil))
	take(t, began, "call")
	stream, err := b.js.Stream(t.Context(), "TIMERS")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(release)
	b.publish(fired("shop:order:timeout:2", nil))
	if id := take(t, began, "event after the purge"); id != "2" {
		t.Errorf("event %s after the purge, want 2", id)
	}
	b.settled("timerd")
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// asked waits until retries of n events were asked for. A request whose answer is lost is repeated.
func (b *bench) asked(n int) {
	b.t.Helper()
	b.retry.WaitFunc(patience, func(all []testenv.Message) error {
		asked := map[string]bool{}
		for _, m := range all {
			asked[string(m.Data)] = true
		}
		if len(asked) != n {
			return fmt.Errorf("retries of %d events, want %d", len(asked), n)
		}
		return nil
	})
}
