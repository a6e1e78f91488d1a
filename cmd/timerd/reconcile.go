package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// reconcileGC is the growth of the heap, in percent, after which garbage is collected. Nearly nothing of a million ids
// is kept: reconcile is a fifth faster, and takes 30 MiB more.
const reconcileGC = 400

// reconcileFlags are the flags of timerd reconcile.
type reconcileFlags struct {
	since, list, refire string
	dryRun, yes         bool
}

func newReconcile() *cobra.Command {
	var flags reconcileFlags
	cmd := &cobra.Command{
		Use:   "reconcile",
		Short: "End the timers of a restored Redis that have fired",
		Long: `After a backup of Redis was put back, end its timers that have fired since the backup was made: an
event in the stream TIMERS, or a dead letter, has their id. Timers that repeat go on after
the last occurrence that has fired. All others fire as ever, and overdue ones at once.

timerd does so by itself, except where TIMERS does not reach back far enough: then timers that were
due wait for this command.

The streams are read from some minutes before the last heartbeat of a timerd in Redis on, or from
--since on, which must lie shortly before the backup was made: a duration (6h, 3d) ago, an instant
(2026-11-20T09:00:00Z) or @unix-ms. Where no timers wait, a cluster needs --since, and so does a
Redis on which a timerd has run since the backup was put back.

The command prints how many timers have fired, and asks whether to go on, unless there are none or
--yes is given. It can be interrupted, and run again.

A key that has fired since then at another due time, and has a timer, is doubtful: the timer may
have been moved, or set again, before or after the backup was put back. It is named, and stays.

Timers set since the backup are lost. So are cancellations: a timer that was cancelled fires. So
does one with a dead letter that was purged, and an occurrence that was moved to an earlier time and
has fired there.

Retries that were requested since then are lost. Those of webhooks are set again, by the log of
deliveries, and fire at once: run timerd deliver again only after this command. --list writes the
last event of every key without such a delivery that has fired since then to a FILE, a JSON object a
line. Remove the finished ones; --refire FILE then fires the others again, under new ids, and does
nothing else.

The exit code is 1 if TIMERS does not reach back far enough; the error says from when on it does. It
is 1, too, if retries of webhooks cannot be read, or not be set again.`,
		Example: `  timerd reconcile --dry-run
  timerd reconcile --since 6h --list fired.jsonl --yes
  timerd reconcile --refire fired.jsonl`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			since, err := parseSince(flags.since, time.Now())
			if err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			var again map[uint64]string
			if flags.refire != "" {
				if again, err = readFired(flags.refire); err != nil {
					return &usageError{cmd.CommandPath(), err}
				}
			}
			journal := newJournal(cmd)
			defer journal.close()
			debug.SetGCPercent(reconcileGC)
			return withSchedule(cmd, func(ctx context.Context, s *schedule.Schedule, _ redis.UniversalClient) error {
				s.FindSteps(ctx)
				return withJetStream(cmd, config.SectionNATS, func(js jetstream.JetStream, c config.Config) error {
					if again != nil {
						firings := admin.NewFirings(s, history.New(js, c.Streams().Names))
						return refire(cmd, firings, again, journal, flags)
					}
					r := admin.Reconciliation{Schedule: s, JetStream: js, Streams: c.Streams(), Since: since,
						Known: since, List: flags.list != ""}
					return reconcile(cmd, &r, journal, flags)
				})
			})
		},
	}
	cmd.Flags().StringVar(&flags.since, "since", "", "read the streams from a `TIME` on")
	cmd.Flags().StringVar(&flags.list, "list", "", "write the last events of keys without webhooks to a `FILE`")
	cmd.Flags().StringVar(&flags.refire, "refire", "", "fire the events in a `FILE` of --list again")
	cmd.MarkFlagsMutuallyExclusive("refire", "list")
	cmd.MarkFlagsMutuallyExclusive("refire", "since")
	cmd.Flags().BoolVar(&flags.dryRun, "dry-run", false, "change nothing")
	cmd.Flags().BoolVarP(&flags.yes, "yes", "y", false, "do not ask")
	return cmd
}

// reconcile ends the timers that have fired, and prints how many.
func reconcile(cmd *cobra.Command, r *admin.Reconciliation, journal *journal, flags reconcileFlags) error {
	ctx := cmd.Context()
	timers, waits, err := r.Waits(ctx)
	if err == nil && r.Since.IsZero() {
		err = r.Find(ctx)
	}
	if err != nil {
		return explainMode(err)
	}
	if err := r.Check(ctx); err != nil {
		if short, ok := errors.AsType[*history.ShortStream](err); ok && !short.From.IsZero() {
			err = fmt.Errorf("%w; for the time since then: timerd reconcile --since %s", err,
				short.From.UTC().Format(time.RFC3339Nano))
		}
		return err
	}
	if flags.dryRun || !flags.yes {
		found, err := runReconcile(cmd, r, true)
		if err != nil || flags.dryRun || found.Ended+found.Retries == 0 && found.NoDeliveries == nil && !waits {
			return endReconcile(cmd, r, found, flags, err, "to end", "to set again")
		}
		free := ""
		if waits {
			free = fmt.Sprintf("; of %s the rest is free then", counted(timers, "waiting timer"))
		}
		if err := confirm(cmd, fmt.Sprintf("%s to end, which have fired since %s, and %s to set again%s. Go on?",
			counted(found.Ended, "timer"), r.Since.UTC().Format(time.RFC3339),
			counted(found.Retries, "webhook"), free)); err != nil {
			return err
		}
	}
	done, err := runReconcile(cmd, r, false) // beside an error, some are ended
	if done.Ended+done.Retries > 0 {
		journal.Note(ctx, event.Entry{Kind: event.EntryReconcile, Count: done.Ended + done.Retries,
			Detail: "since " + r.Since.UTC().Format(time.RFC3339)})
	}
	return endReconcile(cmd, r, done, flags, err, "ended", "set again")
}

// endReconcile writes the list and prints the outcome. err is the error of the reconciliation.
func endReconcile(cmd *cobra.Command, r *admin.Reconciliation, is admin.Reconciled, flags reconcileFlags, err error,
	ended, set string) error {
	if err == nil && flags.list != "" && is.NoDeliveries == nil {
		err = writeFired(flags.list, is.Fired)
	}
	err = errors.Join(err, printReconciled(cmd.OutOrStdout(), r, is, ended, set))
	if err == nil && len(is.Unset) > 0 {
		return exitCode(exitFailed)
	}
	return err
}

// runReconcile runs a reconciliation, and shows its progress.
func runReconcile(cmd *cobra.Command, r *admin.Reconciliation, dry bool) (admin.Reconciled, error) {
	how := progressOf(cmd)
	defer how.clear()
	return r.Run(cmd.Context(), dry, func(read int64) { how.show("%d messages read", read) })
}

// printReconciled prints the outcome of a reconciliation.
func printReconciled(w io.Writer, r *admin.Reconciliation, is admin.Reconciled, ended, set string) error {
	var text strings.Builder
	fmt.Fprintf(&text, "since %s: %s and %s read\n%s %s\n", r.Since.UTC().Format(time.RFC3339),
		counted(is.Events, "event"), counted(is.Letters, "dead letter"), counted(is.Ended, "timer"), ended)
	if is.Retries > 0 {
		fmt.Fprintf(&text, "%s %s\n", counted(is.Retries, "webhook"), set)
	}
	list := func(what string, keysOf []keys.Key) {
		if len(keysOf) > 0 {
			fmt.Fprintf(&text, "%s %s\n", counted(int64(len(keysOf)), "key"), what)
		}
		for _, key := range keysOf {
			fmt.Fprintf(&text, "  %s\n", keys.EncodeText(key.String()))
		}
	}
	list("doubtful: fired since then at another due time, and has a timer", is.Doubtful)
	list("with a webhook delivery that cannot be set again: set them yourself", is.Unset)
	_, err := io.WriteString(w, text.String())
	if is.NoDeliveries != nil {
		err = errors.Join(err, fmt.Errorf("no retries of webhooks were looked for, and no list was written: %w",
			is.NoDeliveries))
	}
	return err
}

// writeFired writes events to a file, a JSON object a line, for --refire.
func writeFired(name string, fired []admin.FiredEvent) error {
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines)
	encoder.SetEscapeHTML(false)
	for _, f := range fired {
		if err := encoder.Encode(f); err != nil {
			return err
		}
	}
	return os.WriteFile(name, lines.Bytes(), 0o600)
}

// readFired reads a file of writeFired, and returns the ids by the numbers in the stream.
func readFired(name string) (map[uint64]string, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	ids := map[uint64]string{}
	n := 0
	for line := range bytes.Lines(text) {
		n++
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		var f admin.FiredEvent
		if err := json.Unmarshal(line, &f); err != nil {
			return nil, fmt.Errorf("%s: line %d: %w; want a line of --list", name, n, err)
		}
		if f.ID == "" || f.Seq == 0 {
			return nil, fmt.Errorf("%s: line %d has no id or seq; want a line of --list", name, n)
		}
		ids[f.Seq] = f.ID
	}
	return ids, nil
}

// refire fires events again, and prints how many.
func refire(cmd *cobra.Command, firings *admin.Firings, ids map[uint64]string, journal *journal,
	flags reconcileFlags) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	if flags.dryRun || len(ids) == 0 {
		_, err := fmt.Fprintf(out, "%s to fire again\n", counted(int64(len(ids)), "event"))
		return err
	}
	if !flags.yes {
		if err := confirm(cmd, counted(int64(len(ids)), "event")+" to fire again, at once. Go on?"); err != nil {
			return err
		}
	}
	how := progressOf(cmd)
	done, err := firings.Resend(ctx, ids, func(r admin.Resent) { how.show("%d fired again", r.Sent) })
	how.clear()
	if done.Sent > 0 {
		journal.Note(ctx, event.Entry{Kind: event.EntryResend, Count: done.Sent, Detail: "of reconcile --refire"})
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s fired again\n", counted(done.Sent, "event"))
	for _, left := range []struct {
		n   int64
		why string
	}{
		{done.Before, "fired again before"}, {done.Gone, "no longer in TIMERS, or without its payload"},
		{done.Crowded, "refused: too many retries wait beside a newer timer of the key"},
		{done.Misplaced, "refused: a guard is not in the slot of the key"},
	} {
		if left.n > 0 {
			fmt.Fprintf(&text, "%d %s\n", left.n, left.why)
		}
	}
	_, failed := io.WriteString(out, text.String())
	if err = errors.Join(err, failed); err == nil && done.Gone+done.Crowded+done.Misplaced > 0 {
		return exitCode(exitFailed)
	}
	return err
}
