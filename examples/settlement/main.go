// Settlement is a bank that settles each day, and writes a statement at the end of each month, in three time zones.
//
// Six timers repeat, by the clock of each branch: bank:settle:daily:<branch> and bank:statement:monthly:<branch>. The
// consumer does the open work up to the event's due time, so the event may come late, or twice. To not wait for the
// night, the demonstration moves the next occurrence of each with EXPIRE; later ones stay. One payment fails; its retry
// waits beside the next occurrence.
//
//	make example-settlement
//	go run ./examples/settlement -redis redis://127.0.0.1:6379/0 -nats nats://127.0.0.1:4222
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/examples/internal/servers"
)

const (
	// retryPolicy is the policy of failed payments.
	retryPolicy = namespace + "=200ms,1s,5s"
	// durable keeps the example apart from other consumers of the same namespace.
	durable = "example-settlement"
	// patience bounds a step of the demonstration.
	patience = time.Minute
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "settlement:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out, errs io.Writer) (err error) {
	flags := flag.NewFlagSet("settlement", flag.ContinueOnError)
	flags.SetOutput(errs)
	choice := servers.Choice{Retry: retryPolicy}
	flags.StringVar(&choice.Timerd, "timerd", "bin/timerd", "the program to start servers of its own with")
	flags.StringVar(&choice.RedisURL, "redis", "", "use this Redis, with -nats, and the timerd that runs on them")
	flags.StringVar(&choice.NATSURL, "nats", "", "use this NATS, with -redis")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return errors.New("want no arguments")
	}
	s, err := servers.Open(ctx, choice)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()

	d := &demo{out: out, fails: "newyork", done: make(chan client.Event, 100)}
	d.bank = &bank{rdb: s.Redis, timers: client.New(s.Redis), pay: d.pay}
	consumer := client.NewConsumer(s.JetStream)
	consumer.Durable = durable
	// the demo prints the rest
	consumer.Logger = slog.New(slog.NewTextHandler(errs, &slog.HandlerOptions{Level: slog.LevelError}))
	return errors.Join(d.play(ctx, consumer), d.end(context.WithoutCancel(ctx)))
}

// demo shows a day and a month.
type demo struct {
	bank *bank
	done chan client.Event // the handled events

	mu    sync.Mutex
	out   io.Writer
	fails string // the branch whose first payment fails
}

// play sets the timers, books something for each branch, and has the day and then the month end.
func (d *demo) play(ctx context.Context, consumer *client.Consumer) error {
	if err := d.bank.repeat(ctx); err != nil {
		return err
	}
	for i, br := range branches() {
		for _, at := range []time.Time{time.Now().AddDate(0, 0, -1), time.Now()} {
			if err := d.bank.book(ctx, br, at, int64(i+1)*12_345); err != nil {
				return err
			}
		}
	}
	if err := d.table(ctx); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- consumer.Consume(ctx, namespace, d.handle) }()
	err := d.pass(ctx, "the night comes", branch.settleKey)
	if err == nil {
		err = d.pass(ctx, "the month ends", branch.statementKey)
	}
	if err == nil {
		err = d.table(ctx)
	}
	stop()
	return errors.Join(err, <-ended)
}

// pass makes the next occurrence of a timer of each branch due now, and waits until it is handled.
func (d *demo) pass(ctx context.Context, what string, key func(branch) string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	d.say("\n%s\n", what)
	open := map[string]bool{}
	for _, br := range branches() {
		open[key(br)] = true
		if moved, err := d.bank.rdb.PExpire(ctx, key(br), 100*time.Millisecond).Result(); err != nil || !moved {
			return errors.Join(fmt.Errorf("%s has no occurrence to move", key(br)), err)
		}
	}
	for len(open) > 0 {
		select {
		case e := <-d.done:
			delete(open, e.Key.String())
		case <-ctx.Done():
			return fmt.Errorf("%s: not all events came: %w", what, ctx.Err())
		}
	}
	return nil
}

// handle prints each event beside the bank's work.
func (d *demo) handle(ctx context.Context, e client.Event) error {
	err := d.bank.handle(ctx, e)
	if err != nil {
		d.say("  %s, occurrence %d, attempt %d: %v\n", e.Key, e.Occurrence, e.Attempt, err)
		return err
	}
	d.say("  %s, occurrence %d, attempt %d: done\n", e.Key, e.Occurrence, e.Attempt)
	select {
	case d.done <- e:
	case <-ctx.Done():
	}
	return nil
}

// pay pays, but for the first payment of one branch.
func (d *demo) pay(_ context.Context, id string, cents int64) error {
	d.mu.Lock()
	fails := d.fails != "" && strings.HasPrefix(id, d.fails)
	if fails {
		d.fails = ""
	}
	d.mu.Unlock()
	if fails {
		return errors.New("the clearing house does not answer")
	}
	d.say("  %s: %s is paid out\n", id, amount(cents))
	return nil
}

// table prints each timer's next due time by the clock of its branch, and the branch's statements.
func (d *demo) table(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	t := tabwriter.NewWriter(d.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "TIMER\tOCCURRENCE\tDUE\tSTATEMENTS")
	for _, br := range branches() {
		statements, err := d.bank.rdb.HGetAll(ctx, br.statements()).Result()
		if err != nil {
			return err
		}
		for _, key := range []string{br.settleKey(), br.statementKey()} {
			timer, err := d.pending(ctx, key)
			if err != nil {
				return err
			}
			due, err := br.local(timer.Due)
			if err != nil {
				return err
			}
			var texts []string
			for _, month := range slices.Sorted(maps.Keys(statements)) {
				if key == br.statementKey() {
					texts = append(texts, month+": "+statements[month])
				}
			}
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\n", key, timer.Occurrence, due.Format("Mon 2006-01-02 15:04 -07:00"),
				strings.Join(texts, ", "))
		}
	}
	return t.Flush()
}

// pending waits until the next occurrence of a timer is there: timerd finds the first one within milliseconds, and arms
// another one when NATS has acknowledged the last.
func (d *demo) pending(ctx context.Context, key string) (client.Timer, error) {
	for {
		timer, found, err := d.bank.timers.Get(ctx, key)
		if err != nil || found && timer.State == client.Pending && timer.Due.After(time.Now()) {
			return timer, err
		}
		if !pause(ctx, 10*time.Millisecond) {
			return timer, fmt.Errorf("%s is not armed: %w", key, ctx.Err())
		}
	}
}

// end ends the repetitions, which would go on without this program.
func (d *demo) end(ctx context.Context) error {
	var names []string
	for _, br := range branches() {
		names = append(names, br.settleKey(), br.statementKey())
	}
	_, err := d.bank.timers.CancelMany(ctx, names)
	return err
}

func (d *demo) say(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.out, format, args...)
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
