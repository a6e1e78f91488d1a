// Webhooks tells merchants that orders were paid, again and again until they answer: timerd's original use.
//
// Each payment sets a timer pay:order:callback:<order>, with the merchant's URL in its payload. timerd deliver calls
// the merchant, signed by Standard Webhooks, and tries again on the schedule of a payment provider. The merchants here
// answer 500, time out and answer 429 before they answer 200. The log of deliveries has the results.
//
//	make example-webhooks
//	go run ./examples/webhooks -redis redis://127.0.0.1:6379/0 -nats nats://127.0.0.1:4222
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/examples/internal/servers"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
)

// schedule is the preset with the delays.
const schedule = "wechatpay"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "webhooks:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out, errs io.Writer) (err error) {
	flags := flag.NewFlagSet("webhooks", flag.ContinueOnError)
	flags.SetOutput(errs)
	orders := flags.Int("orders", 8, "how many orders are paid")
	factor := flags.Int("factor", 60, "how many times shorter the delays are than the payment provider's")
	first := flags.Duration("first", 500*time.Millisecond, "delay of the first callback, after the payment")
	timeout := flags.Duration("timeout", time.Second, "how long a merchant may take to answer")
	var choice servers.Choice
	flags.StringVar(&choice.Timerd, "timerd", "bin/timerd", "the program that delivers, and that starts servers")
	flags.StringVar(&choice.RedisURL, "redis", "", "use this Redis, with -nats, and the timerd that runs on them")
	flags.StringVar(&choice.NATSURL, "nats", "", "use this NATS, with -redis")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *orders < 1 || *factor < 1 {
		return errors.New("want no arguments, and -orders and -factor of at least 1")
	}
	delays, err := shortened(schedule, *factor)
	if err != nil {
		return err
	}
	choice.Retry = retryVariable(delays)

	s, err := servers.Open(ctx, choice)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	m, err := openMerchants(demoReactions)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	file := endpoints(*timeout)
	fmt.Fprintf(out, "Redis %s, NATS %s\nTIMERD_RETRY='%s'\n\ntimerd deliver --config webhooks.yaml, which is\n\n%s\n",
		s.Redis.Options().Addr, s.NATS.ConnectedAddr(), choice.Retry, file)
	d, err := startDeliverer(choice.Timerd, s.NATSURL, file, os.Stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop()) }()

	payments := demoPayments(*orders, m)
	j := newJournal(payments, out)
	if err := setCallbacks(ctx, client.New(s.Redis), payments, *first); err != nil {
		return err
	}
	err = j.follow(ctx, s.JetStream, d.process.Done())
	fmt.Fprintln(out)
	return errors.Join(err, j.table(out))
}

// shortened returns the delays of a preset, each divided by factor.
func shortened(preset string, factor int) ([]time.Duration, error) {
	policies, err := policy.ParseRetries("*=" + preset)
	if err != nil {
		return nil, err
	}
	delays := policies.For(keys.Key{}).Delays()
	for i, d := range delays {
		delays[i] = max((d / time.Duration(factor)).Round(time.Millisecond), policy.MinDelay)
	}
	return delays, nil
}

// retryVariable returns the TIMERD_RETRY that makes delays the policy of callbacks.
func retryVariable(delays []time.Duration) string {
	texts := make([]string, len(delays))
	for i, d := range delays {
		texts[i] = d.String()
	}
	return namespace + "=" + strings.Join(texts, ",")
}

// demoMerchants returns whose orders are paid, in turn.
func demoMerchants() []string { return []string{"flaky", "steady", "busy", "closed"} }

func demoReactions(merchant, _ string) []reaction {
	switch merchant {
	case "flaky":
		return []reaction{fails, hangs, throttle, accepts}
	case "busy":
		return []reaction{busy, accepts}
	case "closed":
		return []reaction{fails, gone}
	default:
		return []reaction{accepts}
	}
}

// demoPayments returns n payments of orders that no other run has.
func demoPayments(n int, m *merchants) []payment {
	now := time.Now().UTC()
	merchants := demoMerchants()
	payments := make([]payment, n)
	for i := range payments {
		payments[i] = payment{
			Order:     fmt.Sprintf("%s-%d", now.Format("150405.000"), i+1),
			Amount:    int64(1000 + 250*i),
			Currency:  "EUR",
			PaidAt:    now,
			NotifyURL: m.url(merchants[i%len(merchants)]),
		}
	}
	return payments
}
