package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

func TestHandlerGetsTheEvent(t *testing.T) {
	testenv.NoLeaks(t)
	b := newBench(t)
	want := fired("shop:order:timeout:42", []byte(`{ "total": 99 }`))
	b.publish(want)
	got := make(chan client.Event, 1)
	c := b.consume(func(_ context.Context, e client.Event) error {
		got <- e
		return nil
	})
	e := take(t, got, "event")
	want.ContentType = event.DataJSON
	if fmt.Sprintf("%+v", e) != fmt.Sprintf("%+v", want) {
		t.Errorf("handler got\n%+v, want\n%+v", e, want)
	}
	b.settled("timerd")
	if err := c.stop(); err != nil {
		t.Errorf("Consume = %v after its context ended, want nil", err)
	}
	if n := b.retry.Len() + b.dead.Len(); n != 0 {
		t.Errorf("%d letters for an event that was handled", n)
	}
}

// Each kind of error has its own end: what is published, with what headers, and
// that the event is acknowledged.
func TestErrorsDecide(t *testing.T) {
	testenv.NoLeaks(t)
	boom := errors.New("merchant said\r\n 500 \x00\xff")
	var nilError *nilReceiver
	for _, c := range []struct {
		name    string
		handler func() error
		retry   nats.Header // besides the id and the content type; nil if there is no retry
		dead    string      // lasterror; "" if there is no dead letter
	}{
		{name: "nil", handler: func() error { return nil }},
		{name: "error", handler: func() error { return boom }, retry: nats.Header{"Timer-Error": {"merchant said   500  \ufffd"}}},
		{name: "typed-nil", handler: func() error { return nilError }, retry: nats.Header{"Timer-Error": {"<nil>"}}},
		{name: "long", handler: func() error { return errors.New(strings.Repeat("ä", 5000)) }, retry: nats.Header{"Timer-Error": {strings.Repeat("ä", 510) + "…"}}},
		{name: "later", handler: func() error { return fmt.Errorf("post: %w", client.RetryAfter(90*time.Second, boom)) }, retry: nats.Header{"Timer-Error": {"post: merchant said   500  \ufffd"}, "Timer-Delay": {"1m30s"}}},
		{name: "negative", handler: func() error { return client.RetryAfter(-time.Second, nil) }, retry: nats.Header{"Timer-Error": {"try again after 0s"}, "Timer-Delay": {"0s"}}},
		{name: "dead", handler: func() error { return fmt.Errorf("post: %w", client.Dead(errors.New("gone"))) }, dead: "post: gone"},
		{name: "dead-nil", handler: func() error { return client.Dead(nil) }, dead: "given up"},
		{name: "dead-wins", handler: func() error { return errors.Join(client.RetryAfter(time.Second, boom), client.Dead(nil)) }, dead: "merchant said   500  \ufffd given up"},
		{name: "panic", handler: func() error { panic("on purpose") }, retry: nats.Header{"Timer-Error": {"panic: on purpose"}}},
		{name: "nil-map", handler: func() error { var m map[string]int; m["a"] = 1; return nil }, retry: nats.Header{"Timer-Error": {"panic: assignment to entry in nil map"}}},
		{name: "goexit", handler: func() error { runtime.Goexit(); return nil }, retry: nats.Header{"Timer-Error": {"the handler called runtime.Goexit"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			e := fired("shop:order:"+c.name+":42", []byte("payload \x00 \xff"))
			b.publish(e)
			b.consume(func(context.Context, client.Event) error { return c.handler() })
			switch {
			case c.retry != nil:
				m := b.retry.Wait(1, patience)[0]
				if m.Subject != "timers.retry.shop.order."+c.name || !bytes.Equal(m.Data, e.AppendJSON(nil)) {
					t.Errorf("retry on %s of %q, want the event unchanged", m.Subject, m.Data)
				}
				c.retry.Set(event.MsgIDHeader, e.ID+".retry")
				c.retry.Set(event.ContentTypeHeader, event.ContentType)
				if !maps.EqualFunc(m.Header, c.retry, func(a, b []string) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
					t.Errorf("retry with header %q, want %q", m.Header, c.retry)
				}
			case c.dead != "":
				m := b.dead.Wait(1, patience)[0]
				got := deadEvent(t, m)
				if m.Subject != "timers.dead.shop.order."+c.name || m.ID() != e.ID+".dead" {
					t.Errorf("dead letter on %s with id %s", m.Subject, m.ID())
				}
				if got.ID != e.ID || got.Key != e.Key || !got.Due.Equal(e.Due) || got.Attempt != 1 || !bytes.Equal(got.Data, e.Data) ||
					got.DeadReason != "given up by the consumer" || got.LastError != c.dead {
					t.Errorf("dead letter %+v, want the event with last error %q", got, c.dead)
				}
			}
			b.settled("timerd")
			if c.retry == nil && b.retry.Len() > 0 || c.dead == "" && b.dead.Len() > 0 {
				t.Errorf("%d retries, %d dead letters", b.retry.Len(), b.dead.Len())
			}
		})
	}
}

type nilReceiver struct{ text string }

func (e *nilReceiver) Error() string { return e.text }

func TestMalformedEventsGoToTheDeadLettersAndBlockNothing(t *testing.T) {
	testenv.NoLeaks(t)
	b := newBench(t)
	letter := fired("shop:order:timeout:1", nil)
	letter.Type = event.TypeDead
	for _, c := range []struct{ subject, data string }{
		{"timers.fired.shop.order.timeout", ""},
		{"timers.fired.shop.order.timeout", "not json \xff\x00"},
		{"timers.fired.shop.order.timeout", `{"specversion":"1.0"}`},
		{"timers.fired.shop.order.timeout", string(letter.AppendJSON(nil))},
		{"timers.fired.bank.order.timeout", string(fired("shop:order:timeout:2", nil).AppendJSON(nil))},
		{"timers.fired.sh%6Fp.order.timeout", "{}"}, // a subject that is none of a timer's still has a dead letter
	} {
		if _, err := b.js.Publish(t.Context(), c.subject, []byte(c.data)); err != nil {
			t.Fatal(err)
		}
	}
	b.publish(fired("shop:order:timeout:3", nil))
	handled := make(chan string, 10)
	b.consume(func(_ context.Context, e client.Event) error { handled <- e.Key.ID; return nil }, func(c *client.Consumer) { c.Concurrency = 1 })
	if id := take(t, handled, "good event after bad ones"); id != "3" {
		t.Errorf("event %s handled, want 3", id)
	}
	b.settled("timerd")
	letters := b.dead.Wait(6, patience)
	for i, want := range []struct{ reason, data string }{
		{"cut short", ""}, {"UTF-8", "not json \xff\x00"}, {"id: missing", `{"specversion":"1.0"}`},
		{`type "timerd.timer.dead"`, string(letter.AppendJSON(nil))}, {"NATS subject", string(fired("shop:order:timeout:2", nil).AppendJSON(nil))},
		{"missing", "{}"},
	} {
		e := deadEvent(t, letters[i])
		if !strings.HasPrefix(e.DeadReason, "malformed: ") || !strings.Contains(e.DeadReason, want.reason) || string(e.Data) != want.data {
			t.Errorf("dead letter %d: reason %q, content %q; want %q, %q", i, e.DeadReason, e.Data, want.reason, want.data)
		}
		if wantID := fmt.Sprintf("TIMERS/%d", i+1); e.Key.ID != wantID {
			t.Errorf("dead letter %d is named %q, want %q", i, e.Key.ID, wantID)
		}
	}
}

// Subjects, ids and payloads of every kind go through a retry and a dead letter.
func TestHostileEvents(t *testing.T) {
	b := newBench(t)
	parts := []string{"a.b", "*", ">", "a b", "\r\n", "\x00", "\xff\xfe", "%41", "é", strings.Repeat("x", keys.MaxPartBytes)}
	payloads := [][]byte{nil, {}, []byte("\r\n"), []byte(`{"a":"\u0000"}`), {0xff, 0}, []byte(`"`), bytes.Repeat([]byte("z"), 1<<18)}
	want := make(map[string]client.Event)
	for i, p := range parts {
		for _, kind := range []string{"retry", "dead"} {
			key := keys.Key{App: p, Module: kind, Type: parts[(i+1)%len(parts)], ID: p + ":" + strings.Repeat("é", 5*i)}
			e := fired(key.String(), payloads[i%len(payloads)])
			if e.Data == nil {
				e.Status = event.StatusMissing
			}
			want[e.ID+"."+kind] = e
			b.publish(e)
		}
	}
	b.consume(func(_ context.Context, e client.Event) error {
		if e.Key.Module == "dead" {
			return client.Dead(errors.New(e.Key.App))
		}
		return errors.New(e.Key.App)
	})
	b.settled("timerd")
	for _, m := range append(b.retry.Wait(len(parts), patience), b.dead.Wait(len(parts), patience)...) {
		e, ok := want[m.ID()]
		got, err := event.Parse(m.Data)
		if !ok || err != nil || got.Key != e.Key || !bytes.Equal(got.Data, e.Data) || (got.Data == nil) != (e.Data == nil) || got.Status != e.Status {
			t.Errorf("letter %s on %s: %+v, %v", m.ID(), m.Subject, got, err)
		}
	}
}

// An id that timerd never makes cannot break the header, or collide with another.
func TestForeignEventIDs(t *testing.T) {
	b := newBench(t)
	ids := []string{"a b", "a\r\nb", " a b", strings.Repeat("a", 600), strings.Repeat("a", 600) + "b", "é"}
	for i, id := range ids {
		e := fired(fmt.Sprintf("shop:order:timeout:%d", i), nil)
		e.ID = id
		if _, err := b.js.Publish(t.Context(), e.Key.Subject("timers", keys.Fired), e.AppendJSON(nil)); err != nil {
			t.Fatal(err)
		}
	}
	b.consume(func(context.Context, client.Event) error { return errors.New("no") })
	for _, m := range b.retry.Wait(len(ids), patience) {
		if id := m.ID(); !strings.HasPrefix(id, "sha256:") || !strings.HasSuffix(id, ".retry") {
			t.Errorf("retry with id %q", id)
		}
	}
}

// An event that fills max_payload still gets its retry and its dead letter, without
// what does not fit.
func TestLettersOfTheLargestEvents(t *testing.T) {
	const limit = 4096
	b := newBench(t, func(o *server.Options) { o.MaxPayload = limit })
	full := func(key string, room int) client.Event {
		e := fired(key, nil)
		e.Data = bytes.Repeat([]byte("z"), limit-room-len(e.AppendJSON(nil)))
		return e
	}
	// What is around the data, and the two headers of the event.
	const around = 100 + 100
	b.publish(full("shop:order:retry:1", around), full("shop:order:dead:1", around), full("shop:order:dead:2", 4*around))
	b.consume(func(_ context.Context, e client.Event) error {
		err := errors.New(strings.Repeat("long ", 200))
		if e.Key.Type == "dead" {
			return client.Dead(err)
		}
		return err
	})
	b.settled("timerd")
	retry := b.retry.Wait(1, patience)[0]
	if retry.Header.Get(event.ErrorHeader) != "" || !bytes.Equal(retry.Data, full("shop:order:retry:1", around).AppendJSON(nil)) {
		t.Errorf("retry with header %q, want none of its error", retry.Header)
	}
	for _, m := range b.dead.Wait(2, patience) {
		e := deadEvent(t, m)
		if want := full(e.Key.String(), map[string]int{"1": around, "2": 4 * around}[e.Key.ID]); !bytes.Equal(e.Data, want.Data) || e.LastError != "" || e.DeadReason == "" {
			t.Errorf("dead letter %s: %d bytes of data, reason %q, last error %q", e.Key, len(e.Data), e.DeadReason, e.LastError)
		}
	}
}

func TestConcurrencyIsLimitedAndUsed(t *testing.T) {
	testenv.NoLeaks(t)
	b := newBench(t)
	const limit, n = 3, 30
	for i := range n {
		b.publish(fired(fmt.Sprintf("shop:order:timeout:%d", i), nil))
	}
	var running, most atomic.Int64
	full := make(chan struct{})
	var once sync.Once
	var seen counter
	b.consume(func(ctx context.Context, e client.Event) error {
		now := running.Add(1)
		defer running.Add(-1)
		for {
			old := most.Load()
			if now <= old || most.CompareAndSwap(old, now) {
				break
			}
		}
		if now == limit {
			once.Do(func() { close(full) })
		}
		select {
		case <-full: // every handler waits until there are as many as there may be
		case <-ctx.Done():
		}
		seen.add(e.ID)
		return nil
	}, func(c *client.Consumer) { c.Concurrency = limit })
	b.settled("timerd")
	if most.Load() != limit {
		t.Errorf("%d handlers at a time, want %d", most.Load(), limit)
	}
	if all := seen.all(); len(all) != n {
		t.Errorf("%d events handled, want %d", len(all), n)
	}
}

// A handler may take many times AckWait: nobody else gets its event meanwhile.
func TestDeadlineIsMovedOnWhileAHandlerWorks(t *testing.T) {
	b := newBench(t)
	const ackWait = 500 * time.Millisecond
	quick := func(c *client.Consumer) { c.AckWait = ackWait }
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
	select {
	case <-calls:
		t.Error("the event was delivered again while its handler worked")
	case <-time.After(5 * ackWait):
	}
	close(release)
	b.settled("timerd")
}

// A consumer that dies loses nothing: its event goes to another one, still with the
// same attempt.
func TestCrashCostsNoAttempt(t *testing.T) {
	b := newBench(t)
	b.publish(fired("shop:order:timeout:42", nil))
	proxy := testenv.NewProxy(t, b.nats.Addr())
	nc, err := nats.Connect("nats://"+proxy.Addr(), nats.NoReconnect())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
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

// Once the context has ended, running handlers finish and nothing new begins; what
// was on its way goes back at once, not after AckWait.
func TestStopLetsHandlersFinish(t *testing.T) {
	testenv.NoLeaks(t)
	b := newBench(t)
	b.publish(fired("shop:order:timeout:1", nil))
	began, release := make(chan string, 10), make(chan struct{})
	long := func(c *client.Consumer) { c.AckWait = time.Hour }
	c := b.consume(func(ctx context.Context, e client.Event) error {
		began <- e.Key.ID
		<-release
		return ctx.Err()
	}, long)
	take(t, began, "call")
	c.cancel()
	b.publish(fired("shop:order:timeout:2", nil)) // comes too late for this consumer
	close(release)
	if err := c.wait(); err != nil {
		t.Errorf("Consume = %v, want nil", err)
	}
	handled := make(chan string, 10)
	b.consume(func(_ context.Context, e client.Event) error { handled <- e.Key.ID; return nil }, long)
	if id := take(t, handled, "event after the restart"); id != "2" {
		t.Errorf("event %s after the restart, want 2", id)
	}
	b.settled("timerd")
	if len(began)+len(handled) != 0 {
		t.Errorf("%d more calls", len(began)+len(handled))
	}
}

// A handler that is still at it when StopTimeout is over sees its context end; its
// event goes back at once, and costs no attempt.
func TestStopCutsHandlersShort(t *testing.T) {
	testenv.NoLeaks(t)
	b := newBench(t)
	b.publish(fired("shop:order:plain:1", nil), fired("shop:order:dead:1", nil), fired("shop:order:done:1", nil))
	began := make(chan struct{}, 10)
	long := func(c *client.Consumer) { c.AckWait, c.StopTimeout = time.Hour, 100*time.Millisecond }
	c := b.consume(func(ctx context.Context, e client.Event) error {
		began <- struct{}{}
		<-ctx.Done()
		switch e.Key.Type {
		case "dead":
			return client.Dead(ctx.Err())
		case "done":
			return nil
		}
		return ctx.Err()
	}, long)
	for range 3 {
		take(t, began, "call")
	}
	if err := c.stop(); err != nil {
		t.Errorf("Consume = %v, want nil: every handler returned", err)
	}
	if n := b.dead.Wait(1, patience); n[0].Subject != "timers.dead.shop.order.dead" {
		t.Errorf("dead letter on %s", n[0].Subject)
	}
	again := make(chan client.Event, 3)
	b.consume(func(_ context.Context, e client.Event) error { again <- e; return nil }, long)
	if e := take(t, again, "event that was given back"); e.Key.Type != "plain" || e.Attempt != 1 {
		t.Errorf("given back: %s, attempt %d; want the plain one, attempt 1", e.Key, e.Attempt)
	}
	b.settled("timerd")
	if n := b.retry.Len(); n != 0 {
		t.Errorf("%d retries, want none", n)
	}
}

// A handler that ignores its context cannot hold Consume up.
func TestStopLeavesStuckHandlersBehind(t *testing.T) {
	testenv.NoLeaks(t)
	b := newBench(t)
	b.publish(fired("shop:order:timeout:42", nil))
	began, release := make(chan struct{}, 1), make(chan struct{})
	c := b.consume(func(context.Context, client.Event) error {
		began <- struct{}{}
		<-release
		return nil
	}, func(c *client.Consumer) { c.StopTimeout = -1 })
	take(t, began, "call")
	if err := c.stop(); err == nil || !strings.Contains(err.Error(), "1 handlers still run") {
		t.Errorf("Consume = %v, want an error that says that a handler still runs", err)
	}
	if n := b.unacknowledged("timerd"); n != 1 {
		t.Errorf("%d events unacknowledged, want 1", n)
	}
	close(release)
	handled := make(chan struct{}, 1)
	b.consume(func(context.Context, client.Event) error { handled <- struct{}{}; return nil })
	take(t, handled, "second delivery")
	b.settled("timerd")
}

// NATS goes and comes back, in the middle of handlers and between events: each event
// is handled once, and what handlers wanted is done after the return.
func TestConsumeSurvivesRestartsOfNATS(t *testing.T) {
	testenv.NoLeaks(t)
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
	b.retry.Wait(2, patience)
	for round := range 3 {
		id := fmt.Sprintf("after %d", round)
		testenv.Eventually(t, patience, func() error {
			_, err := b.js.Publish(t.Context(), "timers.fired.shop.order.timeout", fired("shop:order:timeout:"+id, nil).AppendJSON(nil), jetstream.WithMsgID(id))
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

// A stop is bounded while NATS is away too, whatever handlers do.
func TestStopWhileNATSIsAway(t *testing.T) {
	testenv.NoLeaks(t)
	b := newBench(t)
	began, release := make(chan struct{}, 1), make(chan struct{})
	c := b.consume(func(context.Context, client.Event) error {
		began <- struct{}{}
		<-release
		return errors.New("no")
	}, func(c *client.Consumer) { c.StopTimeout = 100 * time.Millisecond })
	b.publish(fired("shop:order:timeout:42", nil))
	take(t, began, "call")
	b.nats.Stop()
	close(release)
	if err := c.stop(); err != nil {
		t.Errorf("Consume = %v, want nil: no handler runs", err)
	}
	b.nats.Start()
	b.consume(func(context.Context, client.Event) error { return errors.New("no") })
	b.retry.Wait(1, patience)
	b.settled("timerd")
}

// Connections break all the time while events come in: all are handled.
func TestConsumeSurvivesCutConnections(t *testing.T) {
	testenv.NoLeaks(t)
	b := newBench(t)
	proxy := testenv.NewProxy(t, b.nats.Addr())
	nc, err := nats.Connect("nats://"+proxy.Addr(), nats.MaxReconnects(-1), nats.ReconnectWait(5*time.Millisecond), nats.ReconnectJitter(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
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
	if dup := b.retry.DuplicateIDs(); len(dup) > 0 {
		t.Errorf("retries stored twice: %q", dup)
	}
}

// While timerd's retry stream cannot take a request, the event is neither lost nor
// handled again.
func TestRetryWaitsForItsStream(t *testing.T) {
	const ackWait = 500 * time.Millisecond
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
		c.AckWait = ackWait
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	b.publish(fired("shop:order:timeout:42", nil))
	take(t, called, "call")
	select {
	case <-called:
		t.Error("handled again while its retry could not be stored")
	case <-time.After(3 * ackWait):
	}
	if n := b.unacknowledged("timerd"); n != 1 {
		t.Errorf("%d events unacknowledged, want 1", n)
	}
	if _, err := b.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "TIMERS_RETRY", Subjects: []string{"timers.retry.>"}}); err != nil {
		t.Fatal(err)
	}
	testenv.Collect(t, b.js, "TIMERS_RETRY").Wait(1, patience)
	b.settled("timerd")
	if n := calls.all()[""]; n != 1 {
		t.Errorf("%d calls, want 1", n)
	}
	if !strings.Contains(log.String(), "asking for a retry") || !strings.Contains(log.String(), "key=shop:order:timeout:42") {
		t.Errorf("log:\n%s", log.String())
	}
}

// A redelivered event asks for no second retry.
func TestRedeliveryPublishesNoDuplicate(t *testing.T) {
	b := newBench(t)
	e := fired("shop:order:timeout:42", nil)
	b.publish(e)
	for _, durable := range []string{"one", "two"} { // two deliveries of one event
		b.consume(func(context.Context, client.Event) error { return errors.New("no") }, func(c *client.Consumer) { c.Durable = durable })
		b.settled(durable)
	}
	b.retry.Stays(1, 200*time.Millisecond)
}

// An event that was purged while its handler worked holds nothing up.
func TestPurgedEvent(t *testing.T) {
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
