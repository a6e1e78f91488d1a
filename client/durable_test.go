package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/client"
)

// A durable consumer that somebody else made is used as it is, with all of its filter subjects.
func TestConsumeDurable(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	config := jetstream.ConsumerConfig{
		Durable: "mine", FilterSubjects: []string{"timers.fired.shop.*.*", "timers.fired.bank.*.*"},
		AckPolicy: jetstream.AckExplicitPolicy,
		AckWait:   7 * time.Second, MaxAckPending: 5,
	}
	if _, err := b.js.CreateConsumer(t.Context(), "TIMERS", config); err != nil {
		t.Fatal(err)
	}
	c := client.NewConsumer(b.js)
	c.Durable = "mine"
	type got struct {
		key string
		seq uint64
	}
	all := make(chan got, 10)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- c.ConsumeDurable(ctx, func(ctx context.Context, e client.Event) error {
			all <- got{e.Key.String(), client.Sequence(ctx)}
			return nil
		})
	}()
	b.publish(fired("shop:order:a:1", nil), fired("pay:order:a:2", nil), fired("bank:order:a:3", nil))
	seen := map[got]bool{take(t, all, "an event"): true, take(t, all, "another one"): true}
	if !seen[got{"shop:order:a:1", 1}] || !seen[got{"bank:order:a:3", 3}] {
		t.Errorf("got %v", seen)
	}
	stop()
	if err := take(t, ended, "the end"); err != nil {
		t.Error(err)
	}
	if have := b.info("mine").Config; have.MaxAckPending != 5 || have.AckWait != 7*time.Second ||
		len(have.FilterSubjects) != 2 {
		t.Errorf("it was changed: %+v", have)
	}
	for name, want := range map[string]string{"": "Durable is not set", "none": `durable consumer "none"`} {
		c.Durable = name
		if err := c.ConsumeDurable(t.Context(), ignore); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
	if client.Sequence(t.Context()) != 0 {
		t.Error("a context of no handler has a sequence")
	}
}

// An event that a handler gives back comes again, and costs no attempt.
func TestGiveBack(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	calls := make(chan client.Event, 10)
	first := true
	b.consume(func(_ context.Context, e client.Event) error {
		calls <- e
		if first {
			first = false
			return client.GiveBack(errors.New("not mine"))
		}
		return nil
	}, func(c *client.Consumer) { c.Concurrency = 1 })
	b.publish(fired("shop:order:a:1", nil))
	if e, again := take(t, calls, "the event"), take(t, calls, "the event again"); again.ID != e.ID ||
		again.Attempt != 1 {
		t.Errorf("%+v after %+v", again, e)
	}
	b.settled("timerd")
	if n := b.retry.Len(); n != 0 {
		t.Errorf("%d retries", n)
	}
}
