// Callback tells merchants that orders were paid, again and again until they
// answer: the use that timerd was made for.
//
// Each payment sets a timer pay:order:callback:<order>. Its event is consumed with
// client.Consume, which calls the merchant over HTTP, signed as Standard Webhooks
// says. An answer 2xx is success, 410 gives up, a Retry-After of 429 and 503 is
// honoured, and everything else is tried again on the schedule of a payment
// provider. The merchants here answer 500, time out, close the connection and
// answer 429 before they answer 200.
//
//	make example-callback
//	go run ./examples/callback -redis redis://127.0.0.1:6379/0 -nats nats://127.0.0.1:4222
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
	"strings"
	"syscall"
	"time"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/examples/internal/servers"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/retry"
)

const (
	// schedule is whose delays are taken.
	schedule = "wechatpay"
	// durable keeps the example apart from other consumers of the same namespace.
	durable = "example-callback"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "callback:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out, errs io.Writer) (err error) {
	flags := flag.NewFlagSet("callback", flag.ContinueOnError)
	flags.SetOutput(errs)
	orders := flags.Int("orders", 8, "how many orders are paid")
	factor := flags.Int("factor", 60, "how many times shorter the delays are than the payment provider's")
	first := flags.Duration("first", 500*time.Millisecond, "delay of the first callback, after the payment")
	timeout := flags.Duration("timeout", time.Second, "how long a merchant may take to answer")
	var choice servers.Choice
	flags.StringVar(&choice.Timerd, "timerd", "bin/timerd", "the program to start servers of its own with")
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
	fmt.Fprintf(out, "Redis %s, NATS %s\nTIMERD_RETRY='%s'\n\n", s.Redis.Options().Addr, s.NATS.ConnectedAddr(), choice.Retry)
	m, err := openMerchants(demoReactions)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()

	payments := demoPayments(*orders)
	send := newSender(m.endpoints(demoMerchants()...), *timeout)
	defer send.http.CloseIdleConnections()
	j := newJournal(send, delays, payments, *first, out)
	consumer := client.NewConsumer(s.JetStream)
	consumer.Durable = durable
	consumer.Logger = slog.New(slog.NewTextHandler(errs, &slog.HandlerOptions{Level: slog.LevelError})) // the journal tells the rest
	err = j.follow(ctx, client.New(s.Redis), consumer, payments, *first)
	fmt.Fprintln(out)
	return errors.Join(err, j.table(out))
}

// shortened returns the delays of a preset, each divided by factor.
func shortened(preset string, factor int) ([]time.Duration, error) {
	policies, err := retry.ParsePolicies("*=" + preset)
	if err != nil {
		return nil, err
	}
	delays := policies.For(keys.Key{}).Delays()
	for i, d := range delays {
		delays[i] = max((d / time.Duration(factor)).Round(time.Millisecond), retry.MinDelay)
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
		return []reaction{fails, hangs, closes, throttle, accepts}
	case "busy":
		return []reaction{busy, accepts}
	case "closed":
		return []reaction{fails, gone}
	default:
		return []reaction{accepts}
	}
}

// demoPayments returns n payments of orders that no other run has.
func demoPayments(n int) []payment {
	now := time.Now().UTC()
	merchants := demoMerchants()
	payments := make([]payment, n)
	for i := range payments {
		payments[i] = payment{
			Order:    fmt.Sprintf("%s-%d", now.Format("150405.000"), i+1),
			Merchant: merchants[i%len(merchants)],
			Amount:   int64(1000 + 250*i),
			Currency: "EUR",
			PaidAt:   now,
		}
	}
	return payments
}
