package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/keys"
)

func newDeliveries() *cobra.Command {
	var d deliveries
	var since durationFlag
	cmd := &cobra.Command{
		Use:   "deliveries [NAMESPACE]",
		Short: "Show the log of webhook deliveries",
		Long: `Show the log of timerd deliver: a line for each time that a delivery was tried or postponed, oldest
first. The result is delivered, retry, dead or postponed; a status of 0 means no answer. On a
terminal the lines fit its width.

` + namespaceHelp,
		Example: `  timerd deliveries --since 1h
  timerd deliveries pay:order --failed
  timerd deliveries --follow --json`,
		Args: arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, err := namespaceArg(cmd, args)
			if err != nil {
				return err
			}
			if since < 0 {
				return usagef(cmd, "--since cannot be negative")
			}
			d.since = time.Duration(since)
			return withJetStream(cmd, config.SectionNATS, func(js jetstream.JetStream, c config.Config) error {
				d.stream, d.subject = c.NATS.Streams.DeliveryStream(),
					namespace.Subject(c.NATS.Streams.SubjectPrefix(), keys.Delivery)
				return d.show(cmd, js)
			})
		},
	}
	cmd.Flags().BoolVar(&d.failed, "failed", false, "only calls that failed, and dead letters")
	cmd.Flags().BoolVar(&d.follow, "follow", false, "go on with new deliveries, until interrupted")
	cmd.Flags().BoolVar(&d.asJSON, "json", false, "print the records themselves, each in a line of JSON")
	cmd.Flags().Var(&since, "since", "begin this long ago, such as 1h or 7d, instead of with the oldest")
	return cmd
}

// deliveries selects the records to show.
type deliveries struct {
	stream, subject        string
	failed, follow, asJSON bool
	since                  time.Duration // 0: everything
}

// show prints the log.
func (d deliveries) show(cmd *cobra.Command, js jetstream.JetStream) error {
	ctx := cmd.Context()
	stream, err := js.Stream(ctx, d.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("there is no stream %s: timerd deliver creates it at its start", d.stream)
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", d.stream, err)
	}
	conf := jetstream.OrderedConsumerConfig{FilterSubjects: []string{d.subject}}
	if d.since > 0 {
		start := time.Now().Add(-d.since)
		conf.DeliverPolicy, conf.OptStartTime = jetstream.DeliverByStartTimePolicy, &start
	}
	consumer, err := stream.OrderedConsumer(ctx, conf)
	if err != nil {
		return fmt.Errorf("read stream %s: %w", d.stream, err)
	}
	info, err := consumer.Info(ctx)
	if err != nil {
		return fmt.Errorf("read stream %s: %w", d.stream, err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		return fmt.Errorf("read stream %s: %w", d.stream, err)
	}
	defer messages.Stop()
	return d.print(ctx, cmd, messages, info.NumPending)
}

// print prints the existing records, and then new ones.
func (d deliveries) print(ctx context.Context, cmd *cobra.Command, messages jetstream.MessagesContext,
	there uint64) error {
	table := tableFor(cmd.OutOrStdout(), true,
		column{title: "TIME", spare: 2},
		column{title: "KEY", middle: true, least: 20},
		column{title: "ATTEMPT"},
		column{title: "HOST", least: 12, spare: 3},
		column{title: "STATUS", right: true},
		column{title: "TOOK", right: true, spare: 1},
		column{title: "RESULT"},
		column{title: "ERROR", least: 12, spare: 4},
	)
	for n := uint64(0); n < there || d.follow; n++ {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if ctx.Err() != nil {
			return table.flush()
		}
		if err != nil {
			return errors.Join(table.flush(), fmt.Errorf("read stream %s: %w", d.stream, err))
		}
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		if err := d.add(cmd, table, m.Data()); err != nil {
			return err
		}
		if meta.NumPending == 0 { // all existing records, even if some were dropped meanwhile
			if err := table.flush(); err != nil {
				return err
			}
			there = 0
		}
	}
	return table.flush()
}

// add prints a record. With --failed it leaves out successes, and postponements without a call.
func (d deliveries) add(cmd *cobra.Command, t *table, data []byte) error {
	r, err := event.ParseDelivery(data)
	if err != nil {
		_, err = fmt.Fprintf(cmd.ErrOrStderr(), "timerd: %v: %.200q\n", err, data)
		return err
	}
	uncalled := r.Result == event.ResultPostponed && r.Duration == 0
	if d.failed && (uncalled || r.Result == event.ResultDelivered) {
		return nil
	}
	if d.asJSON {
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\n", bytes.TrimSpace(data))
		return err
	}
	most := t.screen.most()
	result := cell{text: showText(string(r.Result), most)}
	if r.Result == event.ResultDead {
		result.tone = toneBad
	}
	t.row(r.Time.UTC().Format(timeLayout), showText(r.Subject, most), r.Attempt, showText(r.Host, most), r.Status,
		fmt.Sprintf("%dms", r.Duration), result, showText(r.Error, most))
	return t.err
}
