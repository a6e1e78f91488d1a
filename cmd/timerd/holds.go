package main

import (
	"context"
	"fmt"
	"io"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/schedule"
)

func newHolds() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "holds",
		Short: "List the namespaces on hold",
		Long: `List the namespaces on hold, or with timers still being released: by whom, since when, the reason,
and the number of waiting due timers. A question mark means that not all could be counted. A timer
under several holds counts for each.`,
		Example: `  timerd holds
  timerd holds --json`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withSchedule(cmd, func(ctx context.Context, s *schedule.Schedule, rdb redis.UniversalClient) error {
				views, err := admin.NewHolds(s).List(ctx)
				if err != nil {
					return explainMode(err)
				}
				err = printHolds(cmd.OutOrStdout(), views, asJSON)
				warnIfUnattended(ctx, cmd, rdb)
				if len(views) == 0 && err == nil && !asJSON {
					_, err = fmt.Fprintln(cmd.OutOrStdout(), "nothing is held")
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a line of JSON for each")
	return cmd
}

func printHolds(w io.Writer, views []admin.HoldView, asJSON bool) error {
	if asJSON {
		return writeLines(w, views)
	}
	t := tableFor(w, true, column{title: "NAMESPACE", middle: true, least: 10}, column{title: "SINCE"},
		column{title: "UNTIL"}, column{title: "HELD"},
		column{title: "BY", spare: 2}, column{title: "REASON", least: 8, spare: 1})
	for _, v := range views {
		until := "resumed"
		if v.Until != nil {
			until = v.Until.Format(timeLayout)
		}
		if v.Resume != nil {
			until = "being resumed: " + string(v.Resume.Kind)
		}
		t.row(v.Namespace, v.Since.Format(timeLayout), until, showKnown(v.Held), v.By, v.Reason)
	}
	return t.flush()
}
