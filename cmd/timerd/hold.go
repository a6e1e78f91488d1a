package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/schedule"
)

func newHold() *cobra.Command {
	var asked schedule.Hold
	var until string
	cmd := &cobra.Command{
		Use:        "hold NAMESPACE",
		SuggestFor: []string{"pause"},
		Short:      "Put the timers of a namespace on hold",
		Long: `Put the timers of a namespace on hold, for example while a provider is down or after a bad deploy.
Once the command has returned 0, no timerd claims a timer of the namespace any more. Timers claimed
before may still be published. Timers that become due wait in Redis, where they can be cancelled;
timerd resume releases them.

The exit code is 1 if it is not certain after 5 s that no timerd claims any more: the command
names the servers without the hold, and the hold stays. It also warns if no replica of Redis has
the hold yet: a failover may then lose it. A namespace already on hold stays so, with the reason
and end given last. A namespace being resumed is on hold again from now: a shift then counts from
this hold.

` + namespaceHelp,
		Example: `  timerd hold pay --reason "provider is down" --for 2h
  timerd hold shop:order`,
		Args: arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if asked.Namespace, err = namespaceArg(cmd, args); err != nil {
				return err
			}
			var lasts time.Duration
			if until != "" {
				if lasts, err = admin.ParseDuration(until); err != nil || lasts < admin.MinHold {
					return usagef(cmd, "--for=%s: want a duration of a second or more, such as 2h", until)
				}
			}
			journal := newJournal(cmd)
			defer journal.close()
			return withHolds(cmd, func(ctx context.Context, h *admin.Holds, rdb redis.UniversalClient) error {
				held, err := h.Hold(ctx, asked, lasts)
				if err != nil {
					return err
				}
				journal.Note(ctx, admin.HoldEntry(held.Hold))
				return tellHeld(ctx, cmd, held, rdb)
			})
		},
	}
	cmd.Flags().StringVar(&asked.Reason, "reason", "", "why it is held; others see it")
	cmd.Flags().StringVar(&until, "for", "", "end the hold by itself after a `DURATION`, as timerd resume does")
	return cmd
}

// tellHeld prints the result of a hold.
func tellHeld(ctx context.Context, cmd *cobra.Command, held admin.Held, rdb redis.UniversalClient) error {
	for _, server := range held.Unreplicated {
		fmt.Fprintf(cmd.ErrOrStderr(),
			"timerd: warning: no replica has the hold, so it is as durable as this server: %s\n", server)
	}
	warnIfUnattended(ctx, cmd, rdb, held.Hold.Namespace)
	if len(held.Missing) > 0 {
		for _, who := range held.Missing {
			fmt.Fprintf(cmd.ErrOrStderr(), "timerd: timers of %s may still be claimed by: %s\n", held.Hold.Namespace,
				who)
		}
		fmt.Fprintln(cmd.ErrOrStderr(),
			"timerd: the hold stands, and the timerds keep trying; repeat the command to see whether it is complete")
		return exitCode(exitFailed)
	}
	what := "held"
	switch {
	case held.Resumed != nil:
		what = "held again, since " + held.Hold.Since.Time().Format(timeLayout) +
			"; the resume has ended, and a shift counts from this hold"
	case held.Was:
		what = "held as before, since " + held.Hold.Since.Time().Format(timeLayout)
	}
	if held.Hold.Until > 0 {
		what += ", until " + held.Hold.Until.Time().Format(timeLayout)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", held.Hold.Namespace, what)
	return err
}
