package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/travel"
	"github.com/timerd-io/timerd/schedule"
)

// advance has the arguments of timerd advance.
type advance struct {
	cmd    *cobra.Command
	by     time.Duration
	to     time.Time // zero: by
	wait   time.Duration
	asJSON bool
}

func newAdvance() *cobra.Command {
	a := advance{wait: travel.DefaultWait}
	var by durationFlag
	var to string
	cmd := &cobra.Command{
		Use:   "advance DURATION",
		Short: "Move the clock of timerd dev --virtual",
		Long: `Move the virtual clock of timerd dev --virtual forward: from each due time on the way to the next,
once all has come to rest there. Firings are settled then, consumers of timerd's clients have
answered, and their retries are set. It prints the events that fired, in order, with virtual times.

Without rest within --wait at one due time it ends: it names the open firings and requests, and the
exit code is 1. A consumer that asks for nothing and has nothing in hand is not waited for.`,
		Example: `  timerd advance 72h
  timerd advance --to 2026-12-24T18:00:00+01:00`,
		Args: arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 == (to != "") {
				return usagef(cmd, "want either a DURATION, such as 72h, or --to")
			}
			if len(args) == 1 {
				if err := by.Set(args[0]); err != nil {
					return usagef(cmd, "DURATION=%s: %v", args[0], err)
				}
				a.by = time.Duration(by)
			}
			if to != "" {
				var err error
				if a.to, err = time.Parse(time.RFC3339, to); err != nil {
					return usagef(cmd, "--to=%s: want a time in RFC 3339, such as 2026-12-24T18:00:00+01:00", to)
				}
			}
			if a.wait <= 0 {
				return usagef(cmd, "--wait=%v: want more than 0", a.wait)
			}
			a.cmd = cmd
			return a.run()
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "the time to reach, in RFC 3339")
	cmd.Flags().DurationVar(&a.wait, "wait", a.wait, "how long to wait for rest at one due time")
	cmd.Flags().BoolVar(&a.asJSON, "json", false, "print the events themselves, each in a line")
	return cmd
}

func (a advance) run() error {
	return withJetStream(a.cmd, config.SectionRedis|config.SectionNATS, func(js jetstream.JetStream,
		c config.Config) error {
		ctx := a.cmd.Context()
		rdb, err := openRedis(a.cmd, c)
		if err != nil {
			return err
		}
		err = a.move(ctx, &travel.Clock{
			Schedule: schedule.Open(ctx, rdb, schedule.DefaultMaxPayload), JetStream: js, Names: c.NATS.Streams.Names,
			Wait: a.wait,
		})
		return errors.Join(err, rdb.Close())
	})
}

// move moves the clock, and prints each firing.
func (a advance) move(ctx context.Context, clock *travel.Clock) error {
	if !clock.Schedule.IsVirtual() {
		return errors.New("the clock of this installation is Redis's: only that of timerd dev --virtual can be moved")
	}
	out := a.cmd.OutOrStdout()
	clock.Fired = newFirings(out).show
	if a.asJSON {
		clock.Fired = func(data []byte) error { return printEventJSON(out, data) }
	}
	if a.to.IsZero() {
		now, err := clock.Now(ctx)
		if err != nil {
			return err
		}
		a.to = now.Add(a.by)
	}
	if err := clock.AdvanceTo(ctx, a.to); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.cmd.ErrOrStderr(), "timerd: %s\n", virtualTime(ctx, clock.Schedule))
	return err
}
