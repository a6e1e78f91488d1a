// Order-timeout cancels orders that are not paid in time.
//
// Placing an order sets a timer shop:order:timeout:<order>, paying cancels it. An event that still comes finds the
// order paid and does nothing. If it comes during the payment, it finds the order locked: it asks for a later try with
// client.RetryAfter, until the payment has ended one way or the other. The later try is a timer like any other, so
// paying cancels it too. An order paid by a transfer, which another program notes without
// cancelling anything, keeps its timer: a guard (client.Unless) ends it.
//
//	make example-order-timeout
//	go run ./examples/order-timeout -redis redis://127.0.0.1:6379/0 -nats nats://127.0.0.1:4222
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/examples/internal/servers"
)

const (
	// retryPolicy allows for more deferrals than fit into the life of a lock. Its
	// delays are for orders that could not be cancelled for another reason.
	retryPolicy = namespace + "=exp(1s,2,1m,40)"
	// durable keeps the example apart from other consumers of the same namespace.
	durable = "example-order-timeout"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "order-timeout:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out, errs io.Writer) (err error) {
	flags := flag.NewFlagSet("order-timeout", flag.ContinueOnError)
	flags.SetOutput(errs)
	timeout := flags.Duration("timeout", 2*time.Second, "how long an order may stay open")
	choice := servers.Choice{Retry: retryPolicy}
	flags.StringVar(&choice.Timerd, "timerd", "bin/timerd", "the program to start servers of its own with")
	flags.StringVar(&choice.RedisURL, "redis", "", "use this Redis, with -nats, and the timerd that runs on them")
	flags.StringVar(&choice.NATSURL, "nats", "", "use this NATS, with -redis")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *timeout <= 0 {
		return errors.New("want no arguments, and a -timeout above 0")
	}
	s, err := servers.Open(ctx, choice)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()

	d := newDemo(newShop(s.Redis, *timeout, *timeout/8, 10**timeout), out)
	consumer := client.NewConsumer(s.JetStream)
	consumer.Durable = durable
	// the demo prints the rest
	consumer.Logger = slog.New(slog.NewTextHandler(errs, &slog.HandlerOptions{Level: slog.LevelError}))
	err = d.play(ctx, consumer)
	fmt.Fprintln(out)
	return errors.Join(err, d.table(ctx, out))
}

// story is the fate of one order of the demonstration; its times are parts of the timeout.
type story struct {
	what     string
	order    string
	begins   float64 // when the payment begins; 0: never
	takes    float64
	declined bool
	transfer bool // another program notes the payment
}

// demo plays stories and prints the events.
type demo struct {
	shop    *shop
	stories []story
	began   time.Time
	done    chan struct{} // closed when no order is open

	mu       sync.Mutex
	out      io.Writer
	attempts map[string]int // of the events of each order
	open     map[string]bool
}

func newDemo(s *shop, out io.Writer) *demo {
	began := time.Now()
	stories := []story{
		{what: "never paid"},
		{what: "paid in time", begins: 0.5},
		{what: "being paid when its time is up", begins: 0.8, takes: 0.6},
		{what: "being paid then, and declined", begins: 0.8, takes: 0.6, declined: true},
		{what: "paid by a transfer, which cancels no timer", begins: 0.5, transfer: true},
	}
	stillOpen := make(map[string]bool)
	for i := range stories {
		stories[i].order = fmt.Sprintf("%s-%d", began.UTC().Format("150405.000"), i+1)
		stillOpen[stories[i].order] = true
	}
	return &demo{
		shop:     s,
		stories:  stories,
		began:    began,
		done:     make(chan struct{}),
		out:      out,
		attempts: make(map[string]int),
		open:     stillOpen,
	}
}

// play places the orders and ends when each one is paid or cancelled.
func (d *demo) play(ctx context.Context, consumer *client.Consumer) error {
	for _, s := range d.stories {
		if err := d.shop.place(ctx, s.order); err != nil {
			return err
		}
		d.say("order %s is placed: %s", s.order, s.what)
	}
	consuming, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- consumer.Consume(consuming, namespace, d.expire) }()
	customers, shopping := errgroup.WithContext(ctx)
	for _, s := range d.stories {
		customers.Go(func() error { return d.pay(shopping, s) })
	}
	if err := customers.Wait(); err != nil {
		stop()
		return errors.Join(err, <-ended)
	}
	select {
	case <-d.done:
		stop()
		return <-ended
	case err := <-ended:
		return errors.Join(err, ctx.Err())
	}
}

// pay is a customer's part.
func (d *demo) pay(ctx context.Context, s story) error {
	if s.begins == 0 || !pause(ctx, d.part(s.begins)) {
		return ctx.Err()
	}
	if s.transfer {
		if err := transfer(ctx, d.shop.rdb, s.order); err != nil {
			return err
		}
		d.say("order %s: the transfer has come", s.order)
		d.close(s.order)
		return nil
	}
	errDeclined := errors.New("the bank declines")
	err := d.shop.pay(ctx, s.order, func(ctx context.Context) error {
		d.say("order %s: the customer is paying", s.order)
		switch {
		case !pause(ctx, d.part(s.takes)):
			return ctx.Err()
		case s.declined:
			return errDeclined
		}
		return nil
	})
	switch {
	case errors.Is(err, errDeclined):
		d.say("order %s: the payment was declined", s.order)
		return nil
	case err == nil:
		d.say("order %s is paid", s.order)
		d.close(s.order)
	}
	return err
}

// expire handles the events of this demonstration's orders.
func (d *demo) expire(ctx context.Context, e client.Event) error {
	if !d.plays(e.Key.ID) {
		return nil
	}
	err := d.shop.expire(ctx, e)
	d.mu.Lock()
	d.attempts[e.Key.ID] = e.Attempt
	d.mu.Unlock()
	if err != nil {
		d.say("order %s: its time is up, attempt %d of %d: %v", e.Key.ID, e.Attempt, e.MaxAttempts, err)
		if e.Attempt >= e.MaxAttempts {
			d.close(e.Key.ID) // it is a dead letter now
		}
		return err
	}
	d.say("order %s: its time is up, attempt %d of %d: done", e.Key.ID, e.Attempt, e.MaxAttempts)
	d.close(e.Key.ID)
	return nil
}

// close notes that an order is not open any more.
func (d *demo) close(order string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.open[order] {
		return
	}
	if delete(d.open, order); len(d.open) == 0 {
		close(d.done)
	}
}

func (d *demo) plays(order string) bool {
	for _, s := range d.stories {
		if s.order == order {
			return true
		}
	}
	return false
}

func (d *demo) part(of float64) time.Duration { return time.Duration(of * float64(d.shop.timeout)) }

// say prints a line with the time since the beginning.
func (d *demo) say(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.out, "%6.2fs  %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, args...))
}

// table prints how each order ended, and how many attempts its event took.
func (d *demo) table(ctx context.Context, w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ORDER\tSTORY\tSTATE\tATTEMPTS")
	for _, s := range d.stories {
		now, err := d.shop.state(ctx, s.order)
		if err != nil {
			return err
		}
		d.mu.Lock()
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\n", s.order, s.what, now, d.attempts[s.order])
		d.mu.Unlock()
	}
	return t.Flush()
}

// pause waits, and reports whether ctx lasted that long.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
