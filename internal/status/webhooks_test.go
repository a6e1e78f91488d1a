package status_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// publish puts a message into a stream.
func (x *installation) publish(subject string) {
	x.t.Helper()
	if _, err := x.js.Publish(x.t.Context(), subject, []byte("x")); err != nil {
		x.t.Fatal(err)
	}
}

// take has a process take an event from a consumer.
func (x *installation) take(c jetstream.Consumer) jetstream.Msg {
	x.t.Helper()
	m, err := c.Next(jetstream.FetchMaxWait(time.Minute))
	if err != nil {
		x.t.Fatal(err)
	}
	return m
}

// Webhooks are not reported before there is a log of deliveries; then their waiting events are.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	x := newInstallation(t)
	x.beat("a", nil)
	ctx := t.Context()
	name := keys.DeliverConsumer("pay")
	consumer, err := x.js.CreateConsumer(ctx, "TIMERS", jetstream.ConsumerConfig{Durable: name,
		FilterSubjects: []string{"timers.fired.none.>", "timers.fired.pay.>"}, AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	for _, others := range []string{"timerd-delivers", "timerd-deliver~$(rm)"} {
		if _, err := x.js.CreateConsumer(ctx, "TIMERS", jetstream.ConsumerConfig{Durable: others,
			AckPolicy: jetstream.AckExplicitPolicy}); err != nil {
			t.Fatal(err)
		}
	}
	r := x.report()
	expect(t, r)
	if len(r.NATS.Streams) != 3 || r.NATS.Webhooks != nil {
		t.Errorf("without a log: %+v", r.NATS)
	}

	if err := streams.EnsureDelivery(ctx, x.js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	x.publish("timers.fired.shop.a.b")
	for range 3 {
		x.publish("timers.fired.pay.a.b")
	}
	first := x.take(consumer)
	r = x.report()
	expect(t, r)
	if len(r.NATS.Streams) != 4 || r.NATS.Streams[3].Name != "TIMERS_DELIVERY" || len(r.NATS.Webhooks) != 1 {
		t.Fatalf("with a log: %+v", r.NATS)
	}
	c := r.NATS.Webhooks[0]
	if c.Name != "timerd-deliver~pay" || c.Waiting != 2 || c.Working != 1 || c.Oldest.IsZero() ||
		c.Oldest.After(c.At) || c.Last.Before(c.Oldest) || c.Last.After(c.At) {
		t.Errorf("%+v", c)
	}

	if err := first.DoubleAck(ctx); err != nil {
		t.Fatal(err)
	}
	// They have to wait for 10 s, without a request in that time.
	soon := time.Now().Add(9 * time.Second)
	testenv.Eventually(t, time.Minute, func() bool { return time.Now().After(soon) }, "nearly enough time")
	testenv.Eventually(t, time.Minute, func() bool { r = x.report(); return len(r.Problems) > 0 },
		"the events to wait for too long")
	expect(t, r, "warn timerd-deliver~pay: 2 events of none, pay wait, the oldest for 1")
	if fix := r.Problems[0].Fix; !strings.Contains(fix, "start timerd deliver") ||
		!strings.Contains(fix, "nats consumer rm TIMERS timerd-deliver~pay") {
		t.Errorf("fix: %s", fix)
	}
	for range 2 {
		if err := x.take(consumer).DoubleAck(ctx); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, x.report())

	if _, err := x.js.PauseConsumer(ctx, "TIMERS", name, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	expect(t, x.report(), "warn timerd-deliver~pay: paused")
	if _, err := x.js.ResumeConsumer(ctx, "TIMERS", name); err != nil {
		t.Fatal(err)
	}
}

// NATS stores nothing while it looks for a message, which may be behind gigabytes of others: the request is for a near
// one.
func TestWebhooksFarBehind(t *testing.T) {
	t.Parallel()
	x := newInstallation(t)
	ctx := t.Context()
	if err := streams.EnsureDelivery(ctx, x.js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	for _, app := range []string{"rare", "busy"} {
		_, err := x.js.CreateConsumer(ctx, "TIMERS", jetstream.ConsumerConfig{
			Durable: "timerd-deliver~" + app, FilterSubject: "timers.fired." + app + ".>",
			AckPolicy: jetstream.AckExplicitPolicy,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	asked, err := x.js.Conn().SubscribeSync("$JS.API.STREAM.MSG.GET.TIMERS")
	if err != nil {
		t.Fatal(err)
	}
	large := make([]byte, 900<<10)
	for range 40 { // 36 MB
		if _, err := x.js.Publish(ctx, "timers.fired.busy.a.b", large); err != nil {
			t.Fatal(err)
		}
	}
	x.publish("timers.fired.rare.a.b")
	reports := 0
	testenv.Eventually(t, time.Minute, func() error { // NATS may be too slow for one report
		c := x.report().NATS.Webhooks
		reports++
		if len(c) != 2 || c[0].Waiting != 40 || c[0].Oldest.IsZero() || c[1].Waiting != 1 || !c[1].Oldest.IsZero() {
			return fmt.Errorf("%+v", c)
		}
		return nil
	}, "a report")
	if n, _, err := asked.Pending(); n == 0 || n > reports || err != nil {
		t.Errorf("NATS was asked for %d messages in %d reports: %v", n, reports, err)
	}
}

// The rights that deploy/README.md lists suffice. Without one of them NATS does not answer, which is said.
func TestWebhooksWithFewRights(t *testing.T) {
	t.Parallel()
	const list = "$JS.API.CONSUMER.LIST.TIMERS"
	rights := []string{"$JS.API.STREAM.MSG.GET.TIMERS", "$JS.API.STREAM.MSG.GET.TIMERS_STATE", list}
	for _, stream := range []string{"TIMERS", "TIMERS_RETRY", "TIMERS_DEAD", "TIMERS_DELIVERY", "TIMERS_STATE"} {
		rights = append(rights, "$JS.API.STREAM.INFO."+stream)
	}
	user := func(name string, publish *server.SubjectPermission) *server.User {
		return &server.User{Username: name, Password: "x", Permissions: &server.Permissions{Publish: publish}}
	}
	x := newInstallation(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "admin", Password: "x"},
			user("console", &server.SubjectPermission{Allow: rights}),
			user("narrow", &server.SubjectPermission{Allow: rights, Deny: []string{list}}),
		}
		o.NoAuthUser = "admin"
	})
	x.beat("a", nil)
	if err := streams.EnsureDelivery(t.Context(), x.js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	_, err := x.js.CreateConsumer(t.Context(), "TIMERS", jetstream.ConsumerConfig{Durable: "timerd-deliver~pay",
		FilterSubject: "timers.fired.pay.>", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	x.publish("timers.fired.pay.a.b")
	x.js = x.nats.JetStream(nats.UserInfo("console", "x"))
	r := x.report()
	expect(t, r)
	if len(r.NATS.Webhooks) != 1 || r.NATS.Webhooks[0].Oldest.IsZero() {
		t.Errorf("%+v", r.NATS)
	}
	x.js = x.nats.JetStream(nats.UserInfo("narrow", "x"))
	r = x.report()
	expect(t, r, "warn cannot read the state of webhooks: consumers of stream TIMERS: ")
	const why = "consumers of stream TIMERS: "
	if n := r.NATS; !strings.HasPrefix(n.NoConsumers, why) || !strings.HasPrefix(n.NoLetters, why) {
		t.Errorf("no reason: %+v", n)
	}
	if fix := r.Problems[0].Fix; !strings.Contains(fix, list) {
		t.Errorf("fix: %s", fix)
	}
}

// A full log, or one that may become full, is reported.
func TestWebhooksWithoutALog(t *testing.T) {
	t.Parallel()
	x := newInstallation(t)
	x.beat("a", nil)
	ctx := t.Context()
	if err := streams.EnsureDelivery(ctx, x.js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	change := func(by func(*jetstream.StreamConfig)) {
		t.Helper()
		stream, err := x.js.Stream(ctx, "TIMERS_DELIVERY")
		if err != nil {
			t.Fatal(err)
		}
		c := stream.CachedInfo().Config
		by(&c)
		if _, err := x.js.UpdateStream(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	const mayFill = "warn TIMERS_DELIVERY: once it is full it takes no more, and deliveries wait for their log"
	change(func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 1, jetstream.DiscardNew })
	expect(t, x.report(), mayFill)
	x.publish("timers.delivery.pay.a.b")
	r := x.report()
	expect(t, r, "fail TIMERS_DELIVERY: it is full: 1 messages of at most 1: deliveries wait for it", mayFill)
	if !r.Failed() {
		t.Error("it is no failure")
	}
	change(func(c *jetstream.StreamConfig) {
		c.MaxMsgs, c.Discard, c.NoAck, c.Subjects = -1, jetstream.DiscardOld, true, []string{"timers.delivery.shop.>"}
	})
	expect(t, x.report(), "fail TIMERS_DELIVERY: it takes timers.delivery.shop.>, not timers.delivery.>",
		"fail TIMERS_DELIVERY: it does not acknowledge messages")
	if err := x.js.DeleteStream(ctx, "TIMERS_DELIVERY"); err != nil {
		t.Fatal(err)
	}
	_, err := x.js.CreateStream(ctx, jetstream.StreamConfig{Name: "TIMERS_DELIVERY",
		Subjects: []string{"timers.delivery.>"}, Storage: jetstream.MemoryStorage})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, x.report(),
		"warn TIMERS_DELIVERY: it is kept in memory, so a restart of NATS loses the log of deliveries")
}
