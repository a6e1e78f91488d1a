package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/internal/config"
)

// The demo keeps the console's pages alive: a trickle of timers of the app demo, a consumer that fails some of them and
// gives one up, and repeating timers. Its firings are not printed.
const (
	demoApp    = "demo"
	demoPause  = 2 * time.Second
	demoWithin = time.Minute // the longest delay of the trickle's timers
	demoAhead  = 40          // initial timers, over the next hour
)

// demo keeps the pages alive.
type demo struct {
	timers *client.Timers
	js     jetstream.JetStream
	conf   config.Config
}

// run sets timers and consumes their events until ctx ends. It ignores errors of servers that are stopping too.
func (d demo) run(ctx context.Context) error {
	if err := d.begin(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("set the timers of the demo: %w", err)
	}
	consumed := make(chan error, 1)
	go func() { consumed <- d.consume(ctx) }()
	for n := 1; backoff.Sleep(ctx, demoPause); n++ {
		in := demoWithin/10 + rand.N(demoWithin)
		kind := []string{"order:timeout", "cart:reminder", "refund:poll", "pay:callback"}[n%4]
		// A timer that cannot be set now is not missed.
		_, _ = d.timers.Set(ctx, fmt.Sprintf("%s:%s:%d", demoApp, kind, 1000+n),
			fmt.Appendf(nil, `{"order":%d,"amount":"%d.00"}`, 1000+n, 5+n%90), client.After(in))
	}
	if err := <-consumed; ctx.Err() == nil {
		return err
	}
	return nil
}

// begin sets the initial timers.
func (d demo) begin(ctx context.Context) error {
	set := func(id, payload string, in time.Duration) error {
		_, err := d.timers.Set(ctx, demoApp+":"+id, []byte(payload), client.After(in))
		return err
	}
	_, every := d.timers.Repeat(ctx, demoApp+":stock:count:1", []byte(`{"warehouse":7}`), client.Every(20*time.Second))
	_, cron := d.timers.Repeat(ctx, demoApp+":report:daily:1", []byte(`{"to":"sales"}`),
		client.Cron("0 9 * * 1-5", "Europe/Berlin"))
	errs := []error{every, cron, set("pay:callback:closed", `{"order":7,"notify_url":"https://merchant.example/cb"}`,
		6*time.Second)}
	for i := range demoAhead {
		in := time.Duration(i+1)*time.Hour/demoAhead + rand.N(time.Minute)
		errs = append(errs, set(fmt.Sprint("order:timeout:", 100+i), fmt.Sprintf(`{"order":%d}`, 100+i), in))
	}
	return errors.Join(errs...)
}

// consume works on the callbacks: the first attempt fails, a later one succeeds, and one merchant is gone for good.
func (d demo) consume(ctx context.Context) error {
	consumer := client.NewConsumer(d.js)
	names := d.conf.NATS.Streams.Names
	consumer.Stream, consumer.Prefix, consumer.Durable = names.FiredStream(), names.SubjectPrefix(), "timerd-dev-demo"
	consumer.Logger, consumer.StopTimeout = slog.New(slog.DiscardHandler), -1
	return consumer.Consume(ctx, demoApp+":pay:callback", func(_ context.Context, e client.Event) error {
		switch {
		case strings.HasSuffix(e.Key.ID, "closed"):
			return client.Dead(errors.New("410 Gone: the merchant has closed the shop"))
		case e.Attempt < 3:
			return errors.New("502 Bad Gateway")
		}
		return nil
	})
}
