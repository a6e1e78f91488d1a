package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// lsPayload is how much of a payload a line of a table shows, in bytes.
const lsPayload = 60

func newLs() *cobra.Command {
	var limit int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls [NAMESPACE]",
		Short: "List pending timers",
		Long: `List pending timers in the order of their due times. Those that are due and set aside are among them, with the reason:
rights, timerd may not read the key; refused, NATS does not take the subject.

` + namespaceHelp,
		Example: `  timerd ls
  timerd ls shop:order --limit 10
  timerd ls shop --limit 0 --json > timers.jsonl`,
		Args: arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, err := namespaceArg(cmd, args)
			if err != nil {
				return err
			}
			if limit < 0 {
				return usagef(cmd, "--limit=%d: want 0, for all, or more", limit)
			}
			return withRedis(cmd, func(ctx context.Context, rdb redis.UniversalClient) error {
				return list(ctx, cmd, rdb, namespace, limit, asJSON)
			})
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 100, "how many to list; 0 for all")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a line of JSON for each")
	return cmd
}

func list(ctx context.Context, cmd *cobra.Command, rdb redis.UniversalClient, namespace keys.Namespace, limit int, asJSON bool) error {
	now, err := rdb.Time(ctx).Result()
	if err != nil {
		return fmt.Errorf("read the clock of Redis: %w", err)
	}

	const page = 100 // rows that share their columns
	table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	rows, more := 0, false
	row := func(p schedule.Pending) error {
		view := newTimerView(p.Key.String(), p.Due, p.Attempt)
		if view.Attempt == 0 {
			view.Attempt = event.Attempt(p.Payload)
		}
		view.SetAside = string(p.Aside)
		if asJSON {
			return writeJSON(cmd.OutOrStdout(), view.withPayload(p.Payload, dataStatus(p.Status)))
		}
		if rows == 0 {
			fmt.Fprintln(table, "DUE\tIN\tATTEMPT\tKEY\tPAYLOAD")
		}
		wait := showWait(p.Due.Sub(now))
		if p.Aside != "" {
			wait = "set aside: " + view.SetAside
		}
		_, err := fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\n", view.DueAt, wait, view.Attempt, view.Key,
			showPayload(p.Payload, dataStatus(p.Status), lsPayload))
		if rows%page == page-1 {
			err = errors.Join(err, table.Flush())
		}
		return err
	}
	var writeErr error
	err = schedule.New(rdb, schedule.DefaultMaxPayload).List(ctx, namespace, func(p schedule.Pending) bool {
		if limit > 0 && rows == limit {
			more = true
			return false
		}
		writeErr = row(p)
		rows++
		return writeErr == nil
	})
	if writeErr == nil {
		writeErr = table.Flush() // else it would fail again with the same error
	}
	err = errors.Join(err, writeErr)
	warnIfUnattended(ctx, cmd, rdb)
	if rows == 0 && err == nil {
		fmt.Fprintln(cmd.ErrOrStderr(), "timerd: 0 pending timers")
	}
	if more {
		fmt.Fprintf(cmd.ErrOrStderr(), "timerd: there are more than these %d; --limit 0 lists all\n", rows)
	}
	return err
}

// dataStatus is a payload's status as the event shows it.
func dataStatus(s schedule.Status) string {
	if s == schedule.PayloadTooLarge {
		return event.StatusTooLarge
	}
	return event.StatusMissing
}
