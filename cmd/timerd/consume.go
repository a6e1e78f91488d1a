package main

import (
	"fmt"
	"os/exec"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/consume"
	"github.com/timerd-io/timerd/keys"
)

// defaultAnswerTime is the default limit for an answer.
const defaultAnswerTime = 5 * time.Minute

func newConsume() *cobra.Command {
	timeout := durationFlag(defaultAnswerTime)
	var durable, start string
	concurrency := 1
	cmd := &cobra.Command{
		Use:        "consume NAMESPACE [flags] -- COMMAND [ARG]...",
		SuggestFor: []string{"work", "exec"},
		Short:      "Hand events to a program in any language",
		Long: `Run a command and hand it events, until SIGTERM or SIGINT. The command reads one line of JSON for
each event on its standard input, the CloudEvent, and answers with one line of JSON each on its
standard output. Its standard error and its environment are those of timerd consume, without the
variables TIMERD_..., which may hold passwords. The answers are

  {"id":"...","result":"done"}                  the event is acknowledged
  {"id":"...","result":"retry","error":"..."}   the next attempt, by the policy of TIMERD_RETRY;
                                                "delay":"30s" overrides its delay
  {"id":"...","result":"postpone","delay":"9m"} the same attempt, later
  {"id":"...","result":"dead","reason":"..."}   a dead letter

id is the id of the event. With one event at a time it may be left out. Any other line is logged,
and acknowledges nothing.

A command that ends gives its events back and is started again, after a pause that grows. An event
that it had in hand at three ends in a row becomes a retry request. Processes that share a durable
consumer share its events; any number may run.

` + namespaceHelp,
		Example: `  timerd consume shop:order:timeout -- python3 cancel_order.py
  timerd consume pay --concurrency 16 --timeout 30s -- node callbacks.js`,
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash != 1 || len(args) < 2 {
				return usagef(cmd, "want a namespace, and a command behind --: timerd consume shop -- python3 "+
					"handler.py")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, err := namespaceArg(cmd, args[:1])
			if err != nil {
				return err
			}
			if concurrency < 1 || timeout < 0 {
				return usagef(cmd, "--concurrency=%d --timeout=%v: want at least 1, and no negative time",
					concurrency, time.Duration(timeout))
			}
			begin, err := startOf(start)
			if err != nil {
				return usagef(cmd, "--start: %v", err)
			}
			if _, err := exec.LookPath(args[1]); err != nil {
				return usagef(cmd, "the command %q cannot be run: %v", args[1], err)
			}
			as := client.Consumer{Durable: durable, Start: begin, Concurrency: concurrency}
			return runConsume(cmd, namespace, args[1:], time.Duration(timeout), as)
		},
	}
	cmd.Flags().IntVar(&concurrency, "concurrency", concurrency, "events in the command's hand at a time")
	cmd.Flags().StringVar(&durable, "durable", "",
		"the name of the durable consumer; by default one made of the namespace")
	cmd.Flags().StringVar(&start, "start", "all",
		"the first event for a new durable consumer: all, now, or a time in RFC 3339")
	cmd.Flags().Var(&timeout, "timeout", "end the command if it has no answer to an event by then; 0: never")
	return cmd
}

// startOf reads the value of --start.
func startOf(text string) (client.Start, error) {
	switch text {
	case "all":
		return client.Start{}, nil
	case "now":
		return client.StartNow(), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return client.Start{}, fmt.Errorf("%.40q: want all, now, or a time such as 2026-11-20T09:00:00Z", text)
	}
	return client.StartAt(at), nil
}

// runConsume consumes until the command is asked to stop.
func runConsume(
	cmd *cobra.Command, namespace keys.Namespace, command []string, timeout time.Duration, as client.Consumer,
) error {
	return withJetStream(cmd, config.SectionNATS, func(js jetstream.JetStream, c config.Config) error {
		log := c.Log.NewLogger(cmd.ErrOrStderr())
		consumer := client.NewConsumer(js)
		consumer.Stream, consumer.Prefix = c.NATS.Streams.FiredStream(), c.NATS.Streams.Prefix
		consumer.Durable, consumer.Start, consumer.Concurrency, consumer.Logger = as.Durable, as.Start, as.Concurrency,
			log
		log.Info("timerd consume is running",
			"namespace", namespace.String(), "command", command[0], "concurrency", as.Concurrency)
		worker := consume.Worker{
			Command: command, Env: config.ChildEnvironment(), Timeout: timeout, Logger: log,
		}
		return worker.Run(cmd.Context(), consumer, namespace.String())
	})
}
