package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/schedule"
)

// cancelFlags are the flags of timerd cancel.
type cancelFlags struct {
	all, yes  bool
	dueBefore string
}

func newCancel() *cobra.Command {
	var flags cancelFlags
	cmd := &cobra.Command{
		Use:        "cancel {KEY | --all NAMESPACE}",
		SuggestFor: []string{"delete", "del", "rm", "remove"},
		Short:      "Cancel a timer, or those of a namespace",
		Long: `Cancel all timers of a key that are pending, held or owed, retries too, and delete the key. The
command prints the result:

  cancelled  there were such timers, and they will not fire; an earlier one that is firing may
  fired      it is too late: the timer is firing or has lately fired, or its event may be in NATS;
             or it is a dead letter, or becomes one
  unknown    there is no such timer

The exit code is 0 only for cancelled.

With --all, cancel the timers of a namespace: all of them, or those due before a time. The time is a
duration from now (90s, 30d), an instant (2026-11-20T09:00:00Z) or @unix-ms. The command prints how
many there are, and asks whether to go on, unless there are none or --yes is given. In the end it
prints the result; on a terminal also the progress. It can be interrupted, and run again.

A timer set after the count stays if it is due later than the last one counted. Otherwise, and while
slots of a cluster are moving, it may be cancelled too.

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
	cmd.Flags().StringVar(&flags.dueBefore, "due-before", "", "with --all: only those due before a `TIME`")
	cmd.Flags().BoolVarP(&flags.yes, "yes", "y", false, "with --all: do not ask")
	return cmd
}

// cancelOne cancels the timers of a key.
func cancelOne(cmd *cobra.Command, arg string) error {
	journal := newJournal(cmd)
	defer journal.close()
	return withKey(cmd, arg, func(ctx context.Context, rdb redis.UniversalClient, key string) error {
		timers := client.New(rdb)
		outcome, err := timers.Cancel(ctx, key)
		if err != nil {
			return err
		}
		if outcome == client.Cancelled {
			journal.Note(ctx, admin.TimersEntry(event.EntryCancel, 1, key))
		}
		if outcome == client.Fired {
			if _, found, err := timers.Get(ctx, key); found && err == nil {
				fmt.Fprintln(cmd.ErrOrStderr(),
					"timerd: it is claimed, so its event, or its dead letter, may be in NATS already; timerd get "+
						"shows it until that is certain")
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

// check is the check of the flags and of KEY.
func (f cancelFlags) check(cmd *cobra.Command, key string) error {
	for _, name := range []string{"due-before", "yes"} {
		if cmd.Flags().Changed(name) {
			return usagef(cmd, "--%s needs --all", name)
		}
	}
	return checkKey(cmd, key)
}

// cancelAll cancels the timers of a namespace.
func cancelAll(cmd *cobra.Command, args []string, flags cancelFlags) error {
	namespace, err := namespaceArg(cmd, args)
	if err != nil {
		return err
	}
	var before admin.Moment
	if cmd.Flags().Changed("due-before") {
		if before, err = admin.ParseMoment(flags.dueBefore); err != nil {
			return usagef(cmd, "--due-before %w", err)
		}
	}
	journal := newJournal(cmd)
	defer journal.close()
	return withSchedule(cmd, func(ctx context.Context, sched *schedule.Schedule, rdb redis.UniversalClient) error {
		b := bulkCancel{
			cmd: cmd, journal: journal, selection: admin.Selection{Query: query.Query{Namespace: namespace}},
			timers: admin.NewTimers(sched),
		}
		if cmd.Flags().Changed("due-before") {
			if b.selection.Before, err = instantOf(ctx, before, rdb); err != nil {
				return err
			}
		}
		if err := b.count(ctx); err != nil {
			return err
		}
		if b.some() && !flags.yes {
			if err := b.ask(); err != nil {
				return err
			}
		}
		return b.cancel(ctx)
	})
}

// bulkCancel is one call of timerd cancel --all.
type bulkCancel struct {
	cmd       *cobra.Command
	timers    *admin.Timers
	journal   *journal
	selection admin.Selection
	found     admin.TimerCount
}

// count counts the timers.
func (b *bulkCancel) count(ctx context.Context) error {
	bar := progressOf(b.cmd)
	var err error
	b.found, err = b.timers.Count(ctx, b.selection, func(f admin.TimerCount) {
		bar.show("searched %d of %d timers, found %d", f.Looked, f.Total, f.Timers)
	})
	bar.clear()
	if ctx.Err() != nil {
		return errors.New("interrupted: nothing was cancelled")
	}
	b.selection = b.found.Counted
	return err
}

// some reports whether there are timers to cancel, or may be.
func (b *bulkCancel) some() bool { return b.found.Timers > 0 || b.found.Cut }

// ask asks whether to go on. It needs a terminal: an answer written before the number was known does not count.
func (b *bulkCancel) ask() error {
	what := fmt.Sprintf("%s of %s", counted(b.found.Timers, "timer"), b.selection.Namespace)
	if b.found.Timers > 0 {
		what += ", the last one due at " + b.found.Last.Format(timeLayout)
	}
	if b.found.Cut {
		what = "at least " + what
	}
	if b.found.Late > 0 {
		what += fmt.Sprintf("; %d of them due already, and perhaps too late to be cancelled", b.found.Late)
	}
	if _, ok := terminalWidth(b.cmd.InOrStdin()); !ok {
		return fmt.Errorf("nothing was cancelled: there is no terminal to ask on; give --yes to go on without. There "+
			"are %s", what)
	}
	return confirm(b.cmd, fmt.Sprintf("%s, to cancel. Go on?", what))
}

// cancel cancels the timers and prints the result.
func (b *bulkCancel) cancel(ctx context.Context) error {
	var done admin.Cancelled
	var err error
	if b.some() {
		bar := progressOf(b.cmd)
		done, err = b.timers.Cancel(ctx, b.selection, func(c admin.Cancelled) {
			bar.show("cancelled %d of %d timers, up to %s", c.Cancelled, b.found.Timers, c.Until.Format(timeLayout))
		})
		bar.clear()
	}
	b.note(ctx, done)
	said := fmt.Sprintf("%d cancelled, %d too late", done.Cancelled, done.TooLate)
	if done.Gone > 0 {
		said += fmt.Sprintf(", %d gone meanwhile", done.Gone)
	}
	if _, printErr := fmt.Fprintln(b.cmd.OutOrStdout(), said); printErr != nil {
		return errors.Join(err, printErr)
	}
	if done.Cut {
		fmt.Fprintf(b.cmd.ErrOrStderr(), "timerd: %v: try again once some have fired\n", query.ErrCut)
	}
	switch {
	case err == nil && done.Cut:
		return exitCode(exitFailed)
	case err == nil:
		return nil
	}
	reached := fmt.Sprintf("after cancelling %d of %s", done.Cancelled, counted(b.found.Timers, "timer"))
	if !done.Until.IsZero() {
		reached += ", up to a due time of " + done.Until.Format(timeLayout)
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted %s; run it again for the rest", reached)
	case errors.Is(err, client.ErrInvalid): // not the user's fault
		return fmt.Errorf("the function library in this Redis is of another version: start a timerd of this version "+
			"on it: %s", err.Error())
	}
	return fmt.Errorf("stopped %s; run it again for the rest: %w", reached, err)
}

// note writes the cancellation to the history.
func (b *bulkCancel) note(ctx context.Context, done admin.Cancelled) {
	if done.Cancelled == 0 {
		return
	}
	e := event.Entry{Kind: event.EntryCancel, Namespace: b.selection.Namespace.String(), Count: done.Cancelled}
	if !b.selection.Before.IsZero() {
		e.Detail = "due before " + b.selection.Before.UTC().Format(timeLayout)
	}
	b.journal.Note(ctx, e)
}
