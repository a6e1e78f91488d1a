package main

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/client"
)

func newCancel() *cobra.Command {
	return &cobra.Command{
		Use:   "cancel KEY",
		Short: "Cancel a timer",
		Long: `Cancel all timers of a key that are pending, held or owed, retries too, and delete the key. What
was found is printed:

  cancelled  there were such timers, and they will not fire; an earlier one that is firing may
  fired      it is too late: the timer is firing, or has lately fired
  unknown    there is no such timer

The exit code is 0 only for the first.

` + keyHelp,
		Example: `  timerd cancel shop:order:timeout:42`,
		Args:    arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkKey(cmd, args[0]); err != nil {
				return err
			}
			return withRedis(cmd, func(ctx context.Context, rdb redis.UniversalClient) error {
				outcome, err := client.New(rdb).Cancel(ctx, args[0])
				if err != nil {
					return err
				}
				if _, err := fmt.Fprintln(cmd.OutOrStdout(), outcome); err != nil {
					return err
				}
				if outcome != client.Cancelled {
					return exitCode(exitFailed)
				}
				return nil
			})
		},
	}
}
