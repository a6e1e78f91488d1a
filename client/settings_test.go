package client_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

func ignore(context.Context, client.Event) error { return nil }

func TestConsumeRefusesToBegin(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, cfg := range []jetstream.ConsumerConfig{
		{Durable: "other", FilterSubject: "timers.fired.bank.*.*", AckPolicy: jetstream.AckExplicitPolicy},
		{Durable: "all", AckPolicy: jetstream.AckExplicitPolicy},
		{Durable: "noack", FilterSubject: "timers.fired.shop.*.*", AckPolicy: jetstream.AckNonePolicy},
	} {
		if _, err := b.js.CreateConsumer(t.Context(), "TIMERS", cfg); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.js.CreatePushConsumer(t.Context(), "TIMERS",
		jetstream.ConsumerConfig{Durable: "push", DeliverSubject: "x",
			AckPolicy: jetstream.AckExplicitPolicy}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, namespace string
		consumer        client.Consumer
		want            []string
	}{
		{"bad namespace", "shop:order:timeout:42", client.Consumer{}, []string{"shop:order:timeout:42", "three parts"}},
		{"empty namespace", "", client.Consumer{}, []string{"empty"}},
		{"bad fields", "shop", client.Consumer{Concurrency: -1, AckWait: time.Millisecond, MaxAckPending: -2},
			[]string{"Concurrency is -1", "AckWait is 1ms", "MaxAckPending is -2"}},
		{"no stream", "shop", client.Consumer{Stream: "NONE"}, []string{`no stream "NONE"`, "start timerd"}},
		{"bad stream name", "shop", client.Consumer{Stream: "a.b"}, []string{"invalid stream name"}},
		{"bad durable name", "shop", client.Consumer{Durable: "a.b"}, []string{`"a.b"`}},
		{"another namespace", "shop", client.Consumer{Durable: "other"},
			[]string{`"other"`, "timers.fired.bank.*.*", "timers.fired.shop.*.*", "another name"}},
		{"no filter", "shop", client.Consumer{Durable: "all"}, []string{`"all"`, "every subject"}},
		{"no acknowledgement", "shop", client.Consumer{Durable: "noack"}, []string{"ack policy"}},
		{"push", "shop", client.Consumer{Durable: "push"}, []string{"push consumer"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			consumer := client.NewConsumer(b.js)
			consumer.Stream, consumer.Durable = c.consumer.Stream, c.consumer.Durable
			consumer.Concurrency, consumer.AckWait, consumer.MaxAckPending = c.consumer.Concurrency, c.consumer.AckWait,
				c.consumer.MaxAckPending
			err := consumer.Consume(t.Context(), c.namespace, ignore)
			if err == nil {
				t.Fatal("Consume = nil")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Consume = %v, want it to say %q", err, want)
				}
			}
		})
	}
}

// bound waits until a durable consumer is being consumed, and returns its settings.
func (b *bench) bound(name string) jetstream.ConsumerConfig {
	b.t.Helper()
	var cfg jetstream.ConsumerConfig
	testenv.Eventually(b.t, patience, func() error {
		c, err := b.js.Consumer(b.t.Context(), "TIMERS", name)
		if err != nil {
			return err
		}
		if c.CachedInfo().NumWaiting == 0 {
			return errors.New("nothing is being fetched")
		}
		cfg = c.CachedInfo().Config
		return nil
	}, "the durable consumer "+name)
	return cfg
}

func TestDurableConsumerIsNamedAfterItsNamespace(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	long := strings.Repeat("x.", keys.MaxPartBytes/2) // too long for the name of a consumer
	for namespace, want := range map[string]struct{ durable, subject string }{
		"*":              {"timerd", "timers.fired.*.*.*"},
		"shop":           {"timerd~shop", "timers.fired.shop.*.*"},
		"shop:order":     {"timerd~shop~order", "timers.fired.shop.order.*"},
		"shop:*:timeout": {"timerd~shop~~timeout", "timers.fired.shop.*.timeout"},
		"a.b:%FF:c%20d":  {"timerd~a%2Eb~%FF~c%20d", "timers.fired.a%2Eb.%FF.c%20d"},
		long: {fmt.Sprintf("timerd~~%x", sha256.Sum256([]byte("timerd~"+keys.EncodeToken(long)))),
			"timers.fired." + keys.EncodeToken(long) + ".*.*"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- client.NewConsumer(b.js).Consume(ctx, namespace, ignore) }()
		cfg := b.bound(want.durable)
		if cfg.FilterSubject != want.subject || cfg.AckPolicy != jetstream.AckExplicitPolicy || cfg.MaxDeliver != -1 ||
			cfg.AckWait != client.DefaultAckWait || cfg.MaxAckPending != client.DefaultMaxAckPending ||
			cfg.DeliverPolicy != jetstream.DeliverAllPolicy {
			t.Errorf("%s: made with %+v", namespace, cfg)
		}
		cancel()
		if err := take(t, done, "end of Consume"); err != nil {
			t.Error(err)
		}
	}
}

// A new durable consumer begins at Start, and an existing one goes on where it was, whatever Start is.
func TestDurableConsumerBegins(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.publish(fired("shop:order:timeout:1", nil))
	between := time.Now()
	b.publish(fired("shop:order:timeout:2", nil))
	var seen counter
	consume := func(name string, start client.Start) *consuming {
		return b.consume(func(_ context.Context, e client.Event) error { seen.add(name + " " + e.Key.ID); return nil },
			func(c *client.Consumer) { c.Durable, c.Start = name, start })
	}
	var all []*consuming
	for name, start := range map[string]client.Start{"all": {}, "at": client.StartAt(between),
		"now": client.StartNow()} {
		all = append(all, consume(name, start))
		b.bound(name)
	}
	b.publish(fired("shop:order:timeout:3", nil))
	for _, name := range []string{"all", "at", "now"} {
		b.settled(name)
	}
	for _, c := range all {
		if err := c.stop(); err != nil {
			t.Error(err)
		}
	}
	b.publish(fired("shop:order:timeout:4", nil))
	consume("at", client.StartNow())
	b.settled("at")
	want := map[string]int{"all 1": 1, "all 2": 1, "all 3": 1, "at 2": 1, "at 3": 1, "at 4": 1, "now 3": 1}
	if got := seen.all(); !maps.Equal(got, want) {
		t.Errorf("events of each consumer: %v, want %v", got, want)
	}
}

// An existing durable consumer goes on where it was, with the settings of the last that consumed it, and without a
// limit of deliveries.
func TestDurableConsumerIsTakenOver(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.publish(fired("shop:order:timeout:1", nil), fired("shop:order:timeout:2", nil))
	existing, err := b.js.CreateConsumer(t.Context(), "TIMERS", jetstream.ConsumerConfig{
		Durable: "mine", FilterSubjects: []string{"timers.fired.*.*.*"}, AckPolicy: jetstream.AckExplicitPolicy,
		MaxDeliver: 3, BackOff: []time.Duration{time.Minute, time.Hour}, Metadata: map[string]string{"owner": "me"},
	})
	if err != nil {
		t.Fatal(err)
	}
	first, err := existing.Next()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.DoubleAck(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 3)
	b.consume(func(_ context.Context, e client.Event) error { got <- e.Key.ID; return nil },
		func(c *client.Consumer) { c.Durable, c.MaxAckPending = "mine", 7 })
	if id := take(t, got, "event"); id != "2" {
		t.Errorf("event %s, want 2: the first is acknowledged", id)
	}
	cfg := b.bound("mine")
	if cfg.AckWait != shortAckWait || cfg.MaxDeliver != -1 || cfg.MaxAckPending != 7 || len(cfg.BackOff) != 0 ||
		cfg.Metadata["owner"] != "me" {
		t.Errorf("taken over as %+v", cfg)
	}
}

// The default of MaxAckPending gives way to a limit of NATS, of a new consumer and of one that exists. A value that was
// set is an error that names it.
func TestMaxAckPendingWithinLimits(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(o *server.Options) { o.JetStreamLimits.MaxAckPending = 20 })
	for _, id := range []string{"1", "2"} {
		got := make(chan string, 1)
		c := b.consume(func(_ context.Context, e client.Event) error { got <- e.Key.ID; return nil },
			func(c *client.Consumer) { c.Durable = "mine" })
		b.publish(fired("shop:order:timeout:"+id, nil))
		take(t, got, "event")
		if most := b.bound("mine").MaxAckPending; most != 20 {
			t.Errorf("MaxAckPending is %d", most)
		}
		c.cancel()
	}
	for durable, most := range map[string]int{"mine": 21, "new": 1000} {
		consumer := client.NewConsumer(b.js)
		consumer.Durable, consumer.MaxAckPending = durable, most
		err := consumer.Consume(t.Context(), "*", ignore)
		if want := fmt.Sprintf("Consumer.MaxAckPending is %d, more than NATS allows (max_ack_pending",
			most); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", durable, err)
		}
	}
}

// The error names an account without room for another consumer, with the fix.
func TestMaxConsumersIsNamed(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	js := nats.JetStream()
	makeStreams(t, js)
	nats.Limit(func(l *server.JetStreamAccountLimits) { l.MaxConsumers = 1 })
	_, err := js.CreateConsumer(t.Context(), "TIMERS", jetstream.ConsumerConfig{Durable: "other"})
	if err != nil {
		t.Fatal(err)
	}
	const want = "NATS allows no further consumer (max_consumers of the account or of stream TIMERS): remove one"
	if err := client.NewConsumer(js).Consume(t.Context(), "*", ignore); err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// A program with more handlers, or fewer, goes on with the consumer that is there, also with one that has another
// max_waiting.
func TestConcurrencyGrowsAndShrinks(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if _, err := b.js.CreateConsumer(t.Context(), "TIMERS", jetstream.ConsumerConfig{
		Durable: "old", FilterSubject: "timers.fired.*.*.*", AckPolicy: jetstream.AckExplicitPolicy, MaxWaiting: 7,
	}); err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 1)
	for i, concurrency := range []int{1, 2000, 3} {
		b.publish(fired(fmt.Sprintf("shop:order:timeout:%d", i), nil))
		for durable, maxWaiting := range map[string]int{"old": 7, "new": client.MaxWaiting} {
			stop := b.consume(func(_ context.Context, e client.Event) error { got <- e.Key.ID; return nil },
				func(c *client.Consumer) { c.Durable, c.Concurrency = durable, concurrency })
			if id := take(t, got, "event"); id != fmt.Sprint(i) {
				t.Errorf("%s with %d handlers: event %s, want %d", durable, concurrency, id, i)
			}
			b.settled(durable)
			cfg := b.bound(durable)
			if want := max(client.DefaultMaxAckPending, concurrency); cfg.MaxWaiting != maxWaiting ||
				cfg.MaxAckPending != want {
				t.Errorf("%s with %d handlers: max_waiting %d, max_ack_pending %d", durable, concurrency,
					cfg.MaxWaiting, cfg.MaxAckPending)
			}
			if err := stop.stop(); err != nil {
				t.Error(err)
			}
		}
	}
}

// Consumers of one durable name share the events, others see all of them.
func TestSharingADurableConsumer(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var shared, own counter
	count := func(c *counter) client.Handler {
		return func(_ context.Context, e client.Event) error { c.add(e.ID); return nil }
	}
	b.consume(count(&shared))
	b.consume(count(&shared))
	b.consume(count(&own), func(c *client.Consumer) { c.Durable = "audit" })
	for id := range strings.FieldsSeq("a b c d e f g h") {
		b.publish(fired("shop:order:timeout:"+id, nil))
	}
	for durable, c := range map[string]*counter{"timerd": &shared, "audit": &own} {
		b.settled(durable)
		if all := c.all(); len(all) != 8 {
			t.Errorf("%s: %d events, want 8", durable, len(all))
		}
		for id, n := range c.all() {
			if n != 1 {
				t.Errorf("%s: event %s handled %d times", durable, id, n)
			}
		}
	}
}

// With a prefix and a stream of their own, other timerds' events stay apart.
func TestPrefixAndStream(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, subject := range map[string]string{"X": "x.y.fired.>", "X_RETRY": "x.y.retry.>"} {
		if _, err := b.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name,
			Subjects: []string{subject}}); err != nil {
			t.Fatal(err)
		}
	}
	e := fired("shop:order:timeout:42", nil)
	if _, err := b.js.Publish(t.Context(), e.Key.Subject("x.y", "fired"), e.AppendJSON(nil)); err != nil {
		t.Fatal(err)
	}
	b.publish(fired("shop:order:timeout:43", nil))
	b.consume(func(_ context.Context, e client.Event) error { return errors.New(e.Key.ID) },
		func(c *client.Consumer) { c.Prefix, c.Stream = "x.y", "X" })
	m := testenv.Collect(t, b.js, "X_RETRY").Wait(1, patience)[0]
	if m.Subject != "x.y.retry.shop.order.timeout" || m.Header.Get("Timer-Error") != "42" {
		t.Errorf("retry on %s of %s", m.Subject, m.Header.Get("Timer-Error"))
	}
}

func TestConsumeEndsWithItsConsumerOrConnection(t *testing.T) {
	t.Parallel()
	t.Run("consumer", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		c := b.consume(ignore)
		b.bound("timerd")
		if err := b.js.DeleteConsumer(t.Context(), "TIMERS", "timerd"); err != nil {
			t.Fatal(err)
		}
		if err := c.wait(); !errors.Is(err, jetstream.ErrConsumerNotFound) {
			t.Errorf("Consume = %v, want that the consumer was deleted", err)
		}
	})
	t.Run("stream", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		c := b.consume(ignore)
		b.bound("timerd")
		if err := b.js.DeleteStream(t.Context(), "TIMERS"); err != nil {
			t.Fatal(err)
		}
		if err := c.wait(); !errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Errorf("Consume = %v, want that the stream was deleted", err)
		}
	})
	t.Run("connection", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		js := b.nats.JetStream()
		c := b.consumeOn(js, ignore)
		b.bound("timerd")
		js.Conn().Close()
		if err := c.wait(); !errors.Is(err, nats.ErrConnectionClosed) {
			t.Errorf("Consume = %v, want that the connection is closed", err)
		}
	})
}

// Starting and stopping leaves nothing behind, and loses no event on its way.
func TestStartAndStopManyTimes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	js := b.nats.JetStream()
	ctx, cancel := context.WithCancel(t.Context())
	published := make(chan int, 1)
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			if _, err := b.js.Publish(t.Context(), "timers.fired.shop.order.timeout",
				fired("shop:order:timeout:42", nil).AppendJSON(nil)); err != nil {
				t.Error(err)
			}
		}
		published <- n
	}()
	var handled atomic.Int64
	handler := func(context.Context, client.Event) error { handled.Add(1); return nil }
	for range 100 {
		before := handled.Load()
		c := b.consumeOn(js, handler, func(c *client.Consumer) { c.AckWait, c.Concurrency = time.Hour, 4 })
		testenv.Eventually(t, patience, func() bool { return handled.Load() > before }, "an event in this round")
		if err := c.stop(); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	n := take(t, published, "count of the published events")
	b.consumeOn(js, handler, func(c *client.Consumer) { c.AckWait = time.Hour })
	b.settled("timerd") // with an AckWait of an hour: events on their way were given back
	if got := handled.Load(); got != int64(n) {
		t.Errorf("%d events handled, want %d", got, n)
	}
}

// JetStream behind a domain works as any other.
func TestDomain(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t, func(o *server.Options) { o.JetStreamDomain = "hub" })
	js, err := jetstream.NewWithDomain(server.Conn(), "hub")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, nats: server, js: js}
	makeStreams(t, js)
	b.retry = testenv.Collect(t, js, "TIMERS_RETRY")
	b.consumeOn(js, func(context.Context, client.Event) error { return errors.New("no") })
	b.publish(fired("shop:order:timeout:42", nil))
	b.retry.Wait(1, patience)
	b.settled("timerd")
}

// The rights that Consumer's documentation lists are enough.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	b := &bench{t: t, nats: testenv.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "admin", Password: "a"},
			{Username: "app", Password: "b", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Allow: []string{
					"$JS.API.CONSUMER.*.TIMERS.>", "$JS.API.CONSUMER.MSG.NEXT.TIMERS.>", "$JS.ACK.TIMERS.>",
					"timers.retry.>", "timers.dead.>",
				}},
				Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
			}},
		}
	})}
	b.js = b.nats.JetStream(nats.UserInfo("admin", "a"))
	makeStreams(t, b.js)
	b.retry, b.dead = testenv.Collect(t, b.js, "TIMERS_RETRY"), testenv.Collect(t, b.js, "TIMERS_DEAD")
	violations := make(chan error, 10)
	js := b.nats.JetStream(nats.UserInfo("app", "b"), nats.ErrorHandler(
		func(_ *nats.Conn, _ *nats.Subscription, err error) { violations <- err }))
	b.publish(fired("shop:order:timeout:1", nil), fired("shop:order:timeout:2", nil))
	c := b.consumeOn(js, func(_ context.Context, e client.Event) error {
		if e.Key.ID == "1" {
			return errors.New("no")
		}
		return client.Dead(nil)
	})
	b.retry.Wait(1, patience)
	b.dead.Wait(1, patience)
	b.settled("timerd")
	if err := c.stop(); err != nil {
		t.Error(err)
	}
	// With the consumer as it is, and with another AckWait.
	b.publish(fired("shop:order:timeout:3", nil))
	b.consumeOn(js, ignore, func(c *client.Consumer) { c.AckWait = time.Minute })
	b.settled("timerd")
	for len(violations) > 0 {
		t.Error(<-violations)
	}
}
