package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/testenv/timerdtest"
)

// A timer is set, fires, and is handled.
func Example() {
	rdb, js, stop := timerdtest.Servers() // a Redis, a NATS and a timerd
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	timers := client.New(rdb)
	due, err := timers.Set(ctx, "shop:order:timeout:42", []byte(`{"total":99}`), client.After(50*time.Millisecond))
	if err != nil {
		fmt.Println(err)
		return
	}

	err = client.NewConsumer(js).Consume(ctx, "shop:order", func(_ context.Context, e client.Event) error {
		fmt.Printf("order %s: %s, attempt %d, on time: %t\n", e.Key.ID, e.Data, e.Attempt, e.Due.Equal(due) &&
			!e.Time.Before(due))
		cancel() // one is enough
		return nil
	})
	fmt.Println("stopped with error", err)
	// Output:
	// order 42: {"total":99}, attempt 1, on time: true
	// stopped with error <nil>
}

// NX sets a timer only once; without it a timer is rescheduled.
func ExampleTimers_Set() {
	rdb, _, stop := timerdtest.Servers()
	defer stop()
	ctx := context.Background()
	timers := client.New(rdb)

	for _, set := range []struct {
		payload string
		when    client.When
		options []client.SetOption
	}{
		{"first", client.After(time.Hour), []client.SetOption{client.NX()}},
		{"second", client.After(time.Minute), []client.SetOption{client.NX()}},
		{"third", client.At(time.Now().Add(24 * time.Hour)), nil},
		{"due at once", client.At(time.Now().Add(-time.Hour)), nil},
	} {
		_, err := timers.Set(ctx, "shop:order:timeout:42", []byte(set.payload), set.when, set.options...)
		fmt.Printf("%s: not set %t, invalid %t\n", set.payload, errors.Is(err, client.ErrNotSet),
			errors.Is(err, client.ErrInvalid))
	}
	timer, found, err := timers.Get(ctx, "shop:order:timeout:42")
	fmt.Printf("pending: %t %s %v\n", found, timer.Payload, err)
	// Output:
	// first: not set false, invalid false
	// second: not set true, invalid false
	// third: not set false, invalid false
	// due at once: not set false, invalid false
	// pending: true due at once <nil>
}

// The outcome says for certain whether the timer will fire.
func ExampleTimers_Cancel() {
	rdb, _, stop := timerdtest.Servers()
	defer stop()
	ctx := context.Background()
	timers := client.New(rdb)

	if _, err := timers.Set(ctx, "shop:order:timeout:42", nil, client.After(15*time.Minute)); err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		outcome, err := timers.Cancel(ctx, "shop:order:timeout:42")
		fmt.Println(outcome, err)
	}
	// Output:
	// cancelled <nil>
	// unknown <nil>
}

// Many timers are set in few round trips, each by itself.
func ExampleTimers_SetMany() {
	rdb, _, stop := timerdtest.Servers()
	defer stop()
	ctx := context.Background()

	var settings []client.Setting
	for _, id := range []string{"41", "42", ""} {
		settings = append(settings, client.Setting{Key: "shop:order:timeout:" + id, When: client.After(time.Hour)})
	}
	results, err := client.New(rdb).SetMany(ctx, settings)
	fmt.Println("some failed:", err != nil)
	for i, r := range results {
		fmt.Printf("%q set: %t\n", settings[i].Key, r.Err == nil)
	}
	// Output:
	// some failed: true
	// "shop:order:timeout:41" set: true
	// "shop:order:timeout:42" set: true
	// "shop:order:timeout:" set: false
}

// Many timers are cancelled in few round trips: those of an order that was paid, say.
func ExampleTimers_CancelMany() {
	rdb, _, stop := timerdtest.Servers()
	defer stop()
	ctx := context.Background()
	timers := client.New(rdb)

	if _, err := timers.Set(ctx, "shop:order:timeout:42", nil, client.After(15*time.Minute)); err != nil {
		fmt.Println(err)
		return
	}
	keys := []string{"shop:order:reminder:42", "shop:order:timeout:42"}
	results, err := timers.CancelMany(ctx, keys)
	fmt.Println("some failed:", err != nil)
	for i, r := range results {
		fmt.Println(keys[i], r.Outcome)
	}
	// Output:
	// some failed: false
	// shop:order:reminder:42 unknown
	// shop:order:timeout:42 cancelled
}

// A handler's error decides about its event.
func ExampleConsumer_Consume() {
	rdb, js, stop := timerdtest.Servers()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	timers := client.New(rdb)
	for i, id := range []string{"busy", "gone", "broken", "fine"} {
		if _, err := timers.Set(ctx, "pay:order:callback:"+id, nil,
			client.After(time.Duration(i+1)*30*time.Millisecond)); err != nil {
			fmt.Println(err)
			return
		}
	}

	consumer := client.NewConsumer(js)
	consumer.Concurrency = 1
	consumer.Logger = slog.New(slog.DiscardHandler)
	err := consumer.Consume(ctx, "pay:order:callback", func(_ context.Context, e client.Event) error {
		switch e.Key.ID {
		case "busy":
			return client.RetryAfter(30*time.Second, errors.New("429 Too Many Requests"))
		case "gone":
			return client.Dead(errors.New("410 Gone"))
		case "broken":
			return errors.New("500 Internal Server Error")
		}
		cancel() // the last one
		return nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	for _, stream := range []string{"TIMERS_RETRY", "TIMERS_DEAD"} {
		s, err := js.Stream(context.Background(), stream)
		if err != nil {
			fmt.Println(err)
			return
		}
		for seq := uint64(1); ; seq++ {
			m, err := s.GetMsg(context.Background(), seq)
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				break
			}
			fmt.Printf("%s %q %q\n", m.Subject, m.Header.Get("Timer-Error"), m.Header.Get("Timer-Delay"))
		}
	}
	// Output:
	// timers.retry.pay.order.callback "429 Too Many Requests" "30s"
	// timers.retry.pay.order.callback "500 Internal Server Error" ""
	// timers.dead.pay.order.callback "" ""
}
