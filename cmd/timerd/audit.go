package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/schedule"
)

func newAudit() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Compare the schedule with all keys now",
		Long: `Compare the schedule with its own records and with all keys now, repair the differences, and print
them. timerd does so by itself at its start, after each gap in the keyspace events, and every ten
minutes. Run it if somebody has deleted or restored keys of Redis.

The timerds do the audit: for each server its first timerd, which knows the namespaces and the
received events. Without a timerd nothing is audited. A timer whose key, record and
place in the schedule agree stays as it is. Ctrl-C ends the wait; audits already begun go on.

The exit code is 1 if not everything was audited.`,
		Example: `  timerd audit
  timerd audit --json`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			journal := newJournal(cmd)
			defer journal.close()
			return withSchedule(cmd, func(ctx context.Context, s *schedule.Schedule, _ redis.UniversalClient) error {
				return audit(ctx, cmd, s, journal, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a line of JSON for each server")
	return cmd
}

// auditLine is the line of timerd audit --json for a server.
type auditLine struct {
	Server string `json:"server,omitempty"` // of a cluster
	Timerd string `json:"timerd"`           // the auditing instance
	Took   int64  `json:"took_ms"`
	schedule.AuditOutcome
}

// audit audits everything, and prints the results.
func audit(ctx context.Context, cmd *cobra.Command, s *schedule.Schedule, journal *journal, asJSON bool) error {
	began, so := time.Now(), progressOf(cmd)
	all, err := admin.Audit(ctx, s, func(all []admin.Audited) {
		for _, one := range all {
			if !one.Done && one.Doing != "" {
				so.show("%s, for %s", one.Doing, time.Since(began).Round(time.Second))
				return
			}
		}
		so.show("waiting for a timerd, for %s", time.Since(began).Round(time.Second))
	})
	so.clear()
	if ctx.Err() != nil {
		fmt.Fprintln(cmd.ErrOrStderr(), "timerd: interrupted; audits that have begun go on")
		return exitCode(exitFailed)
	}
	all = slices.DeleteFunc(all, func(one admin.Audited) bool { return !one.Done })
	if len(all) > 0 {
		journal.Note(ctx, event.Entry{Kind: event.EntryAudit,
			Detail: "of " + counted(int64(len(all)), "server")})
	}
	if asJSON {
		lines := make([]auditLine, len(all))
		for i, one := range all {
			lines[i] = auditLine{one.Server, one.Instance, one.Took.Milliseconds(), one.Outcome}
		}
		return errors.Join(writeLines(cmd.OutOrStdout(), lines), err)
	}
	if len(all) > 0 {
		err = errors.Join(printAudits(cmd.OutOrStdout(), all), err)
	}
	return err
}

// printAudits prints the results of audits, all servers together.
func printAudits(w io.Writer, all []admin.Audited) error {
	var out schedule.AuditOutcome
	var took time.Duration
	for _, one := range all {
		out.Add(one.Outcome)
		took = max(took, one.Took)
	}
	if _, err := fmt.Fprintf(w, "%s audited in %s\n", counted(out.Timers, "timer"),
		took.Round(time.Millisecond)); err != nil {
		return err
	}
	t := tableFor(w, false, column{title: "COUNT", right: true}, column{title: "OUTCOME"})
	for _, row := range []struct {
		n    int64
		text string
	}{
		{out.Restored, "restored: the schedule had lost them, but not their records"},
		{out.WithoutPayload, "restored without payload: their records are lost"},
		{out.Dropped, "dropped: records of refused claims, and timers whose keys have no TTL"},
		{out.Unknown, "unknown: records without a timer; they stay"},
		{out.Adopted, "adopted: keys missing from the schedule"},
		{out.Rescheduled, "rescheduled: their keys have another TTL"},
		{out.Cancelled, "cancelled: their keys were deleted, or lost their TTLs"},
		{out.Kept, "kept: their keys are gone for an unknown reason; they fire"},
		{out.Unreadable, "unreadable: timerd has no right to read their keys"},
	} {
		if row.n > 0 {
			t.row(fmt.Sprint(row.n), row.text)
		}
	}
	return t.flush()
}
