package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/client"
)

// Once the context has ended, running handlers finish and nothing new begins; events on their way go back at once, not
// after AckWait.
func TestStopLetsHandlersFinish(t *testing.T) {
	t.Parallel()
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

// A handler that is still at it when StopTimeout is over sees its context end; its event goes back at once, and costs
// no attempt.
func TestStopCutsHandlersShort(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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

// A stop is bounded, even while NATS is away and handlers hang.
func TestStopWhileNATSIsAway(t *testing.T) {
	t.Parallel()
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
	b.asked(1)
	b.settled("timerd")
}
