package main

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/client"
)

func newCancel() *cobra.Command {
	var flags cancelFlags
	cmd := &cobra.Command{
		Use:   "cancel {KEY | --all NAMESPACE}",
		Short: "Cancel a timer, or those of a namespace",
		Long: `Cancel all timers of a key that are pending, held or owed, retries too, and delete the key. What
was found is printed:

  cancelled  there were such timers, and they will not fire; an earlier one that is firing may
  fired      it is too late: the timer has lately fired, or is firing, or its event may be in NATS;
             or it is a dead letter instead, or becomes one
  unknown    there is no such timer

The exit code is 0 only for the first.

With --all, cancel those of a namespace: all of them, or those that are due before a time, which is
a duration from now (90s, 30d), an instant (2026-11-20T09:00:00Z) or @unix-ms. How many there are is
told, and asked whether to go on, unless there are none or --yes is given. What came of them is
printed in the end; on a terminal also how far it is. It can be interrupted, and called again.

Timers that are set after they were counted stay if they are due later than the last one that was
counted. Others may be cancelled too.

` + keyHelp + `
` + namespaceHelp,
		Example: `  timerd cancel shop:order:timeout:42
  timerd cancel --all shop:promo
  timerd cancel --all shop:order:reminder --due-before 2h --yes`,
		Args: arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if flags.all {
				return cancelAll(cmd, args, flags)
			}
			if err := flags.check(cmd, args[0]); err != nil {
				return err
			}
			return cancelOne(cmd, args[0])
		},
	}
	cmd.Flags().BoolVar(&flags.all, "all", false, "cancel the timers of a namespace")
	cmd.Flags().StringVar(&flags.dueBefore, "due-before", "", "with --all: only those that are due before a `TIME`")
	cmd.Flags().BoolVarP(&flags.yes, "yes", "y", false, "with --all: do not ask")
	return cmd
}

// cancelOne cancels the timers of a key.
func cancelOne(cmd *cobra.Command, key string) error {
	return withKey(cmd, key, func(ctx context.Context, rdb redis.UniversalClient) error {
		timers := client.New(rdb)
		outcome, err := timers.Cancel(ctx, key)
		if err != nil {
			return err
		}
		if outcome == client.Fired {
			if _, found, err := timers.Get(ctx, key); found && err == nil {
				fmt.Fprintln(cmd.ErrOrStderr(), "timerd: it is claimed, so its event, or its dead letter, may be in NATS already; timerd get shows it until that is known")
			}
		}
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), outcome); err != nil {
			return err
		}
		if outcome != client.Cancelled {
			return exitCode(exitFailed)
		}
		return nil
	})
}
