package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// reconcileFlags are the flags of timerd reconcile.
type reconcileFlags struct {
	since       string
	dryRun, yes bool
}

func newReconcile() *cobra.Command {
	var flags reconcileFlags
	cmd := &cobra.Command{
		Use:   "reconcile",
		Short: "End the timers of a restored Redis that have fired",
		Long: `After a backup of Redis was put back, end its timers that have fired since the backup was made: an
event in the stream TIMERS, or a dead letter, has their id. Timers that repeat go on after
the last occurrence that has fired. All others fire as ever, and overdue ones at once.

Run it before any timerd: stop all of them, put the backup back, run this command, and start them.

The streams are read from some minutes before the last heartbeat of a timerd in Redis on, or from
--since on, which must lie shortly before the backup was made: a duration (6h, 3d) ago, an instant
(2026-11-20T09:00:00Z) or @unix-ms. A cluster needs --since, and so does a Redis on which a timerd
has run since the backup was put back.

The command prints how many timers have fired, and asks whether to go on, unless there are none or
--yes is given. It can be interrupted, and run again.

A key that has fired since then at another due time, and has a timer, is doubtful: the timer may
have been moved, or set again, before or after the backup was put back. It is named, and stays.

Timers set since the backup are lost. So are retries that were requested since then, and
cancellations: a timer that was cancelled fires. So does one with a dead letter that was purged, and
an occurrence that was moved to an earlier time and has fired there.

The exit code is 1 if TIMERS does not reach back far enough; the error says from when on it does.`,
		Example: `  timerd reconcile --dry-run
  timerd reconcile --since 6h --yes`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			since, err := parseSince(flags.since, time.Now())
			if err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			journal := newJournal(cmd)
			defer journal.close()
			return withSchedule(cmd, func(_ context.Context, s *schedule.Schedule, _ redis.UniversalClient) error {
				return withJetStream(cmd, config.SectionNATS, func(js jetstream.JetStream, c config.Config) error {
					r := admin.Reconciliation{Schedule: s, JetStream: js, Streams: c.Streams(), Since: since,
						Known: since}
					return reconcile(cmd, &r, journal, flags)
				})
			})
		},
	}
	cmd.Flags().StringVar(&flags.since, "since", "", "read the streams from a `TIME` on")
	cmd.Flags().BoolVar(&flags.dryRun, "dry-run", false, "change nothing")
	cmd.Flags().BoolVarP(&flags.yes, "yes", "y", false, "do not ask")
	return cmd
}

// reconcile ends the timers that have fired, and prints how many.
func reconcile(cmd *cobra.Command, r *admin.Reconciliation, journal *journal, flags reconcileFlags) error {
	ctx := cmd.Context()
	if r.Since.IsZero() {
		if err := r.Find(ctx); err != nil {
			return explainMode(err)
		}
	}
	if err := r.Check(ctx); err != nil {
		if short, ok := errors.AsType[*admin.ShortStream](err); ok && !short.From.IsZero() {
			err = fmt.Errorf("%w; for the time since then: timerd reconcile --since %s", err,
				short.From.UTC().Format(time.RFC3339Nano))
		}
		return err
	}
	if flags.dryRun || !flags.yes {
		found, err := runReconcile(cmd, r, true)
		if err != nil || flags.dryRun || found.Ended == 0 {
			return errors.Join(err, printReconciled(cmd.OutOrStdout(), r, found, "to end"))
		}
		if err := confirm(cmd, fmt.Sprintf("%s to end, which have fired since %s. Go on?",
			counted(found.Ended, "timer"), r.Since.UTC().Format(time.RFC3339))); err != nil {
			return err
		}
	}
	done, err := runReconcile(cmd, r, false) // beside an error, some are ended
	if done.Ended > 0 {
		journal.Note(ctx, event.Entry{Kind: event.EntryReconcile, Count: done.Ended,
			Detail: "since " + r.Since.UTC().Format(time.RFC3339)})
	}
	return errors.Join(err, printReconciled(cmd.OutOrStdout(), r, done, "ended"))
}

// runReconcile runs a reconciliation, and shows its progress.
func runReconcile(cmd *cobra.Command, r *admin.Reconciliation, dry bool) (admin.Reconciled, error) {
	how := progressOf(cmd)
	defer how.clear()
	return r.Run(cmd.Context(), dry, func(read int64) { how.show("%d messages read", read) })
}

// printReconciled prints the outcome of a reconciliation.
func printReconciled(w io.Writer, r *admin.Reconciliation, is admin.Reconciled, what string) error {
	_, err := fmt.Fprintf(w, "since %s: %s and %s read\n%s %s\n", r.Since.UTC().Format(time.RFC3339),
		counted(is.Events, "event"), counted(is.Letters, "dead letter"), counted(is.Ended, "timer"), what)
	if err == nil && len(is.Doubtful) > 0 {
		_, err = fmt.Fprintf(w, "%s doubtful: fired since then at another due time, and has a timer\n",
			counted(int64(len(is.Doubtful)), "key"))
	}
	for _, key := range is.Doubtful {
		if err == nil {
			_, err = fmt.Fprintf(w, "  %s\n", keys.EncodeText(key.String()))
		}
	}
	return err
}
