package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
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
	"github.com/timerd-io/timerd/keys"
)

func TestHandlerGetsTheEvent(t *testing.T) {
	t.Parallel()
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

// Each kind of error has its own end: the published message with its headers, and the acknowledged event.
func TestErrorsDecide(t *testing.T) {
	t.Parallel()
	boom := errors.New("merchant said\r\n 500 \x00\xff")
	var nilError *nilReceiver
	for _, c := range []struct {
		name    string
		handler func() error
		retry   nats.Header // without the id and the content type; nil for no retry
		dead    string      // lasterror; "" if there is no dead letter
	}{
		{name: "nil", handler: func() error { return nil }},
		{name: "error", handler: func() error { return boom },
			retry: nats.Header{"Timer-Error": {"merchant said   500  \ufffd"}}},
		{name: "typed-nil", handler: func() error { return nilError }, retry: nats.Header{"Timer-Error": {"<nil>"}}},
		{name: "long", handler: func() error { return errors.New(strings.Repeat("ä", 5000)) },
			retry: nats.Header{"Timer-Error": {strings.Repeat("ä", 638) + "…"}}},
		{name: "later", handler: func() error {
			return fmt.Errorf("post: %w",
				client.RetryAfter(90*time.Second, boom))
		}, retry: nats.Header{
			"Timer-Error": {"post: merchant said   500  \ufffd"}, "Timer-Delay": {"1m30s"}}},
		{name: "no-sooner", handler: func() error {
			return fmt.Errorf("post: %w",
				client.RetryNoSooner(90*time.Second, boom))
		}, retry: nats.Header{
			"Timer-Error": {"post: merchant said   500  \ufffd"}, "Timer-Delay-Least": {"1m30s"}}},
		{name: "no-sooner-nil", handler: func() error { return client.RetryNoSooner(-time.Second, nil) },
			retry: nats.Header{"Timer-Error": {"try again after 0s at least"}, "Timer-Delay-Least": {"0s"}}},
		{name: "negative", handler: func() error { return client.RetryAfter(-time.Second, nil) },
			retry: nats.Header{"Timer-Error": {"try again after 0s"}, "Timer-Delay": {"0s"}}},
		{name: "postponed", handler: func() error {
			return fmt.Errorf("post: %w",
				client.Postpone(90*time.Second, boom))
		}, retry: nats.Header{
			"Timer-Error": {"post: merchant said   500  \ufffd"}, "Timer-Delay": {"1m30s"}, "Timer-Postpone": {"1"}}},
		{name: "postponed-nil", handler: func() error { return client.Postpone(-time.Second, nil) },
			retry: nats.Header{"Timer-Error": {"postponed by 0s"}, "Timer-Delay": {"0s"}, "Timer-Postpone": {"1"}}},
		{name: "postponed-wins", handler: func() error {
			return errors.Join(client.RetryAfter(time.Second, nil), client.Postpone(time.Minute, nil))
		}, retry: nats.Header{"Timer-Error": {"try again after 1s postponed by 1m0s"}, "Timer-Delay": {"1m0s"},
			"Timer-Postpone": {"1"}}},
		{name: "dead", handler: func() error { return fmt.Errorf("post: %w", client.Dead(errors.New("gone"))) },
			dead: "post: gone"},
		{name: "dead-nil", handler: func() error { return client.Dead(nil) }, dead: "given up"},
		{name: "dead-wins", handler: func() error {
			return errors.Join(client.RetryAfter(time.Second, boom),
				client.Dead(nil))
		}, dead: "merchant said   500  \ufffd given up"},
		{name: "panic", handler: func() error { panic("on purpose") },
			retry: nats.Header{"Timer-Error": {"panic: on purpose"}}},
		{name: "nil-map", handler: func() error { return writeTo(nil) },
			retry: nats.Header{"Timer-Error": {"panic: assignment to entry in nil map"}}},
		{name: "goexit", handler: func() error { runtime.Goexit(); return nil },
			retry: nats.Header{"Timer-Error": {"the handler called runtime.Goexit"}}},
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
				c.retry.Set(event.ContentTypeHeader, event.ContentType)
				c.retry.Set(event.ConsumerHeader, "timerd")
				if !maps.EqualFunc(m.Header, c.retry, func(a,
					b []string) bool {
					return fmt.Sprint(a) == fmt.Sprint(b)
				}) {
					t.Errorf("retry with header %q, want %q", m.Header, c.retry)
				}
			case c.dead != "":
				m := b.dead.Wait(1, patience)[0]
				got := deadEvent(t, m)
				if m.Subject != "timers.dead.shop.order."+c.name || m.ID() != e.ID {
					t.Errorf("dead letter on %s with id %s", m.Subject, m.ID())
				}
				if got.ID != e.ID || got.Key != e.Key || !got.Due.Equal(e.Due) || got.Attempt != 1 ||
					!bytes.Equal(got.Data, e.Data) ||
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
	t.Parallel()
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
	b.consume(func(_ context.Context, e client.Event) error { handled <- e.Key.ID; return nil },
		func(c *client.Consumer) { c.Concurrency = 1 })
	if id := take(t, handled, "good event after bad ones"); id != "3" {
		t.Errorf("event %s handled, want 3", id)
	}
	b.settled("timerd")
	letters := b.dead.Wait(6, patience)
	for i, want := range []struct{ reason, data string }{
		{"cut short", ""}, {"UTF-8", "not json \xff\x00"}, {"id: missing", `{"specversion":"1.0"}`},
		{`type "timerd.timer.dead"`, string(letter.AppendJSON(nil))},
		{"NATS subject", string(fired("shop:order:timeout:2", nil).AppendJSON(nil))},
		{"missing", "{}"},
	} {
		e := deadEvent(t, letters[i])
		if !strings.HasPrefix(e.DeadReason, "malformed: ") || !strings.Contains(e.DeadReason, want.reason) ||
			string(e.Data) != want.data {
			t.Errorf("dead letter %d: reason %q, content %q; want %q, %q", i, e.DeadReason, e.Data, want.reason,
				want.data)
		}
		if wantID := fmt.Sprintf("TIMERS/%d", i+1); e.Key.ID != wantID {
			t.Errorf("dead letter %d is named %q, want %q", i, e.Key.ID, wantID)
		}
	}
}

// Subjects, ids and payloads of every kind go through a retry and a dead letter.
func TestHostileEvents(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	parts := []string{"a.b", "*", ">", "a b", "\r\n", "\x00", "\xff\xfe", "%41", "é",
		strings.Repeat("x", keys.MaxPartBytes)}
	payloads := [][]byte{nil, {}, []byte("\r\n"), []byte(`{"a":"\u0000"}`), {0xff, 0}, []byte(`"`),
		bytes.Repeat([]byte("z"), 1<<18)}
	want := make(map[string]client.Event)
	for i, p := range parts {
		for _, kind := range []string{"retry", "dead"} {
			key := keys.Key{App: p, Module: kind, Type: parts[(i+1)%len(parts)], ID: p + ":" + strings.Repeat("é", 5*i)}
			e := fired(key.String(), payloads[i%len(payloads)])
			if e.Data == nil {
				e.Status = event.StatusMissing
			}
			want[e.ID] = e
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
		got, err := event.Parse(m.Data)
		e, ok := want[got.ID]
		if !ok || err != nil || got.Key != e.Key || !bytes.Equal(got.Data, e.Data) ||
			(got.Data == nil) != (e.Data == nil) || got.Status != e.Status {
			t.Errorf("letter %s on %s: %+v, %v", m.ID(), m.Subject, got, err)
		}
	}
}

// An id that timerd never makes cannot break the header, or collide with another.
func TestForeignEventIDs(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ids := []string{"a b", "a\r\nb", " a b", strings.Repeat("a", 600), strings.Repeat("a", 600) + "b", "é"}
	for i, id := range ids {
		e := fired(fmt.Sprintf("shop:order:timeout:%d", i), nil)
		e.ID = id
		if _, err := b.js.Publish(t.Context(), e.Key.Subject("timers", keys.Fired), e.AppendJSON(nil)); err != nil {
			t.Fatal(err)
		}
	}
	b.consume(func(context.Context, client.Event) error { return client.Dead(nil) })
	for _, m := range b.dead.Wait(len(ids), patience) {
		if id := m.ID(); !strings.HasPrefix(id, "sha256:") {
			t.Errorf("dead letter with id %q", id)
		}
	}
}

// An event that fills max_payload still gets its retry and its dead letter, without the parts that do not fit.
func TestLettersOfTheLargestEvents(t *testing.T) {
	t.Parallel()
	const limit = 4096
	b := newBench(t, func(o *server.Options) { o.MaxPayload = limit })
	full := func(key string, room int) client.Event {
		e := fired(key, nil)
		e.Data = bytes.Repeat([]byte("z"), limit-room-len(e.AppendJSON(nil)))
		return e
	}
	// The parts around the data, and the two headers of the event.
	const around = 100 + 100
	b.publish(full("shop:order:retry:1", around), full("shop:order:dead:1", around),
		full("shop:order:dead:2", 4*around))
	b.consume(func(_ context.Context, e client.Event) error {
		err := errors.New(strings.Repeat("long ", 200))
		if e.Key.Type == "dead" {
			return client.Dead(err)
		}
		return err
	})
	b.settled("timerd")
	retry := b.retry.Wait(1, patience)[0]
	if retry.Header.Get(event.ErrorHeader) != "" || !bytes.Equal(retry.Data,
		full("shop:order:retry:1", around).AppendJSON(nil)) {
		t.Errorf("retry with header %q, want none of its error", retry.Header)
	}
	for _, m := range b.dead.Wait(2, patience) {
		e := deadEvent(t, m)
		if want := full(e.Key.String(), map[string]int{"1": around, "2": 4 * around}[e.Key.ID]); !bytes.Equal(e.Data,
			want.Data) || e.LastError != "" || e.DeadReason == "" {
			t.Errorf("dead letter %s: %d bytes of data, reason %q, last error %q", e.Key, len(e.Data), e.DeadReason,
				e.LastError)
		}
	}
}

// A dead letter that its stream does not take as it is goes there without its payload, and says so.
func TestDeadLetterOverTheLimitOfItsStream(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	limited := jetstream.StreamConfig{Name: "TIMERS_DEAD", Subjects: []string{"timers.dead.>"}, MaxMsgSize: 1000}
	if _, err := b.js.UpdateStream(t.Context(), limited); err != nil {
		t.Fatal(err)
	}
	b.publish(fired("shop:order:timeout:42", bytes.Repeat([]byte("z"), 1000)))
	b.consume(func(context.Context, client.Event) error { return client.Dead(errors.New("no")) })
	e := deadEvent(t, b.dead.Wait(1, patience)[0])
	if e.Data != nil || e.Status != event.StatusTooLarge || e.Key.ID != "42" || e.DeadReason == "" {
		t.Errorf("dead letter %+v, want one without data", e)
	}
	b.settled("timerd")
}

func TestConcurrencyIsLimitedAndUsed(t *testing.T) {
	t.Parallel()
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

// writeTo writes to a map, which panics if it is nil.
func writeTo(m map[string]int) error {
	m["a"] = 1
	return nil
}
