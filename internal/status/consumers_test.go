package status_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/cron"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
)

// The report has each durable consumer, its failures and others', and the dead letters by namespace.
func TestConsumersAndLetters(t *testing.T) {
	t.Parallel()
	state := jetstream.StreamConfig{Name: "TIMERS_STATE", Subjects: []string{"timers.state.>"}, MaxMsgsPerSubject: 1}
	x := newInstallation(t)
	x.beat("a", nil)
	ctx := t.Context()
	consumer, err := x.js.CreateConsumer(ctx, "TIMERS", jetstream.ConsumerConfig{
		Durable: "mine", FilterSubject: "timers.fired.pay.>", AckPolicy: jetstream.AckExplicitPolicy,
	})
	if err == nil {
		_, err = x.js.CreateStream(ctx, state) // as timerds do
	}
	if err != nil {
		t.Fatal(err)
	}
	r := x.report()
	expect(t, r)
	if len(r.NATS.Consumers) != 1 || r.NATS.Consumers[0].Failed != nil || r.NATS.Unnamed != nil ||
		r.NATS.Letters != nil {
		t.Errorf("before a timerd has said anything: %+v", r.NATS)
	}

	x.publish("timers.fired.pay.a.b")
	if err := x.take(consumer).Nak(); err != nil {
		t.Fatal(err)
	}
	again := x.take(consumer) // the same event: there is no other one yet
	for range 2 {
		x.publish("timers.fired.pay.a.b")
	}
	key := keys.Key{App: "pay", Module: "a", Type: "b", ID: "1"}
	now := time.Now()
	for i, failed := range []int{2, 3} { // of two timerds
		c := streams.Consumers{Instance: fmt.Sprint("timerd ", i)}
		for n := range failed {
			c.CountFailed(streams.Failure{Key: key, Consumer: "mine", At: now.Add(time.Duration(n) * time.Millisecond),
				Error: fmt.Sprintf("failure %d of %d", n, failed)})
			c.CountFailed(streams.Failure{Key: key, At: now})
		}
		c.CountFailed(streams.Failure{Key: key, Consumer: "mine", At: now.Add(-11 * time.Minute), Error: "older"})
		c.CountFailed(streams.Failure{Key: key, Consumer: "gone", At: now})
		c.AddSample("mine", streams.ConsumerSample{Minute: streams.Minute(now) - 5})
		for range 2 { // the second replaces the first
			if err := streams.StoreConsumers(ctx, x.js, streams.Config{}, c); err != nil {
				t.Fatal(err)
			}
		}
	}
	dead := func(k keys.Key, reason, text string) {
		e := event.Event{
			ID: keys.EventID(k.String(), now.UnixMilli(), 1), Type: event.TypeDead, Key: k, Time: now, Due: now,
			Attempt: 1, MaxAttempts: 1,
			Trigger: "deadline", DeadReason: reason, LastError: text,
		}
		if _, err := x.js.Publish(ctx, k.Subject("timers", keys.Dead), e.AppendJSON(nil)); err != nil {
			t.Fatal(err)
		}
	}
	dead(keys.Key{App: "shop", Module: "a", Type: "süß", ID: "1"}, "late: 1s", "")
	_, zone := cron.At("@daily", "Europe/Berln")
	dead(keys.Key{App: "shop", Module: "a", Type: "daily", ID: "1"}, event.ReasonRepeat+zone.Error(), "")
	dead(key, "exhausted", "404")
	dead(key, "exhausted", "500 Internal Server Error")
	x.publish("timers.dead.odd")

	r = x.report()
	expect(t, r, "warn mine: its handler only fails: the last 5 attempts, within ",
		"warn dead letters in TIMERS_DEAD: 5",
		`warn a repetition of shop:a:daily has ended: zone "Europe/Berln" is not in the time zone database: did you mean Europe/Berlin?`)
	c := r.NATS.Consumers[0]
	if c.Name != "mine" || c.Waiting != 2 || c.Working != 1 || c.Redelivered != 1 || c.Failed == nil || *c.Failed != 5 {
		t.Errorf("%+v, failed %v", c, c.Failed)
	}
	if l := c.LastFailure; l == nil || l.Error != "failure 2 of 3" || l.Key != key.String() {
		t.Errorf("last failure %+v", l)
	}
	if c.PerSecond == nil || *c.PerSecond <= 0 || c.FailingShare == nil || *c.FailingShare != 1 {
		t.Errorf("the delivery given back ended, and failed, but it has %v a second, failing %v", c.PerSecond,
			c.FailingShare)
	}
	if len(r.NATS.Unnamed) != 1 || r.NATS.Unnamed[0] != (status.Failures{Namespace: "pay:a:b", Failed: 5}) {
		t.Errorf("unnamed %+v", r.NATS.Unnamed)
	}
	var letters []string
	for _, l := range r.NATS.Letters {
		letters = append(letters, fmt.Sprintf("%s %d %q %q %t", l.Namespace, l.Letters, l.Reason, l.Error,
			l.Last.IsZero()))
	}
	want := `pay:a:b 2 "exhausted" "500 Internal Server Error" false; timers.dead.odd 1 "" "" false; ` +
		`shop:a:daily 1 "repeat: zone \"Europe/Berln\" is not in the time zone database: did you mean Europe/Berlin?" "" false; shop:a:s%C3%BC%C3%9F 1 "late: 1s" "" false`
	if got := strings.Join(letters, "; "); got != want {
		t.Errorf("letters %s, want %s", got, want)
	}
	if n := r.NATS; n.NoConsumers != "" || n.NoLetters != "" {
		t.Errorf("read, but %q and %q", n.NoConsumers, n.NoLetters)
	}
	if err := again.DoubleAck(ctx); err != nil {
		t.Fatal(err)
	}
}
