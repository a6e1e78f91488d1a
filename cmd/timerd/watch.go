package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/keys"
)

func newWatch() *cobra.Command {
	var asJSON bool
	var count int
	var since durationFlag
	cmd := &cobra.Command{
		Use:        "watch [NAMESPACE]",
		SuggestFor: []string{"follow", "tail"},
		Short:      "Follow firings live",
		Long: `Follow firings as they happen, until interrupted. Each line shows a timer's due time, the lateness
of its event, its key, attempt, trigger and payload. Firings over a second late, and retries, are
marked. On a terminal the lines fit its width. Elsewhere they are complete.

` + namespaceHelp,
		Example: `  timerd watch
  timerd watch shop:order
  timerd watch shop --since 7d --json`,
		Args: arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, err := namespaceArg(cmd, args)
			if err != nil {
				return err
			}
			if count < 0 || since < 0 {
				return usagef(cmd, "--count and --since cannot be negative")
			}
			return withJetStream(cmd, config.SectionNATS, func(js jetstream.JetStream, c config.Config) error {
				show := newFirings(cmd.OutOrStdout()).show
				if asJSON {
					show = func(data []byte) error { return printEventJSON(cmd.OutOrStdout(), data) }
				}
				w := watched{
					stream:  c.NATS.Streams.FiredStream(),
					subject: namespace.Subject(c.NATS.Streams.Prefix, keys.Fired),
					since:   time.Duration(since),
					count:   count,
				}
				w.ready = func() error {
					fmt.Fprintf(cmd.ErrOrStderr(), "timerd: watching %s in stream %s\n", w.subject, w.stream)
					return nil
				}
				return watch(cmd.Context(), js, w, show)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the events themselves, each in a line")
	cmd.Flags().IntVar(&count, "count", 0, "end after this many firings; 0: never")
	cmd.Flags().Var(&since, "since", "begin this long ago, such as 1h or 7d, instead of now")
	return cmd
}

// watched selects the messages to follow.
type watched struct {
	stream, subject string
	since           time.Duration // 0: only new ones
	count           int           // 0: for ever
	ready           func() error  // called once nothing new can be missed
}

// consumer begins at an exact place in the stream: the meaning of "new" would change with each reconnection.
func (w watched) consumer(ctx context.Context, js jetstream.JetStream) (jetstream.MessagesContext, error) {
	stream, err := history.Open(ctx, js, w.stream)
	if err != nil {
		return nil, err
	}
	conf := jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{w.subject},
		DeliverPolicy:  jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:    stream.CachedInfo().State.LastSeq + 1,
	}
	if w.since > 0 {
		start := time.Now().Add(-w.since)
		conf.DeliverPolicy, conf.OptStartSeq, conf.OptStartTime = jetstream.DeliverByStartTimePolicy, 0, &start
	}
	consumer, err := stream.OrderedConsumer(ctx, conf)
	if err != nil {
		return nil, fmt.Errorf("follow stream %s: %w", w.stream, err)
	}
	return consumer.Messages()
}

// watch hands the content of messages to show until ctx ends or the count is reached; neither is an error. It goes on
// through restarts of NATS.
func watch(ctx context.Context, js jetstream.JetStream, w watched, show func([]byte) error) error {
	messages, err := w.consumer(ctx, js)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	defer messages.Stop()
	if err := w.ready(); err != nil {
		return err
	}
	for seen := 0; w.count == 0 || seen < w.count; seen++ {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("follow stream %s: %w", w.stream, err)
		}
		if err := show(m.Data()); err != nil {
			return err
		}
	}
	return nil
}

// firings prints events as lines of a table.
type firings struct{ table *table }

func newFirings(w io.Writer) firings {
	return firings{tableFor(w, false,
		column{title: "DUE", spare: 2},
		column{title: "LATE", right: true, wide: 6},
		column{title: "KEY", middle: true, least: 20},
		column{title: "ATTEMPT"},
		column{title: "TRIGGER", spare: 1},
		column{title: "PAYLOAD", least: 12, spare: 3},
	)}
}

// show prints the event of a message, or, if the message holds none, a line that says so.
func (f firings) show(data []byte) error {
	most := f.table.screen.most()
	e, err := event.Parse(data)
	if err != nil {
		_, err = fmt.Fprintf(f.table.w, "not an event: %v: %s\n", err, showPayload(data, "", most))
		return err
	}
	f.table.row(e.Due.UTC().Format(timeLayout), lateCell(e), keys.EncodeText(e.Key.String()),
		attemptCell(e.Attempt, e.MaxAttempts), e.Trigger, showPayload(e.Data, e.Status, most))
	return f.table.flush()
}

// lateCell formats the lateness of an event, with a mark if it is great.
func lateCell(e event.Event) cell {
	late := e.Time.Sub(e.Due)
	switch {
	case e.Time.IsZero():
		return cell{text: "?"}
	case late >= lateAfter:
		return cell{"+" + showAbout(late) + " late", toneBad}
	}
	return cell{text: fmt.Sprintf("%+dms", late.Milliseconds())}
}

// printEventJSON prints an event in one line.
func printEventJSON(w io.Writer, data []byte) error {
	var line bytes.Buffer
	if err := json.Compact(&line, data); err != nil {
		return newFirings(w).show(data)
	}
	line.WriteByte('\n')
	_, err := w.Write(line.Bytes())
	return err
}
