package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/moment"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/schedule"
)

// cancelFlags are the flags of timerd cancel.
type cancelFlags struct {
	all, yes  bool
	dueBefore string
}

// cancelAll cancels the timers of a namespace.
func cancelAll(cmd *cobra.Command, args []string, flags cancelFlags) error {
	namespace, err := namespaceArg(cmd, args)
	if err != nil {
		return err
	}
	var before moment.Moment
	if cmd.Flags().Changed("due-before") {
		if before, err = moment.Parse(flags.dueBefore); err != nil {
			return usagef(cmd, "--due-before %w", err)
		}
	}
	return withSchedule(cmd, func(ctx context.Context, sched *schedule.Schedule, rdb redis.UniversalClient) error {
		b := bulkCancel{
			cmd: cmd, selection: query.Query{Namespace: namespace},
			timers: admin.NewTimers(sched, client.New(rdb)),
		}
		if cmd.Flags().Changed("due-before") {
			if b.selection.Before, err = instantOf(ctx, before, rdb); err != nil {
				return err
			}
		}
		if err := b.count(ctx); err != nil {
			return err
		}
		if b.found.Timers > 0 && !flags.yes {
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
	selection query.Query
	found     admin.TimerCount
}

// count counts the timers.
func (b *bulkCancel) count(ctx context.Context) error {
	bar := progressOf(b.cmd)
	var err error
	b.found, err = b.timers.Count(ctx, b.selection, func(f admin.TimerCount) {
		bar.show("looked at %d of %d timers, found %d", f.Looked, f.Total, f.Timers)
	})
	bar.clear()
	if ctx.Err() != nil {
		return errors.New("interrupted: nothing was cancelled")
	}
	b.selection = b.found.Counted
	return err
}

// ask asks whether to go on. It needs a terminal: an answer that was written before the number was known is none.
func (b *bulkCancel) ask() error {
	what := fmt.Sprintf("%s of %s, the last one due at %s", countTimers(b.found.Timers), b.selection.Namespace, b.found.Last.Format(timeLayout))
	if b.found.Cut {
		what = "at least " + what
	}
	if b.found.Late > 0 {
		what += fmt.Sprintf("; %d of them due already, and perhaps too late to be cancelled", b.found.Late)
	}
	if _, ok := terminalWidth(b.cmd.InOrStdin()); !ok {
		return fmt.Errorf("nothing was cancelled: there is no terminal to ask on, give --yes to go on without. There are %s", what)
	}
	return confirm(b.cmd, fmt.Sprintf("%s, to cancel. Go on?", what))
}

// cancel cancels the timers and says what came of them.
func (b *bulkCancel) cancel(ctx context.Context) error {
	var done admin.Cancelled
	var err error
	if b.found.Timers > 0 {
		bar := progressOf(b.cmd)
		done, err = b.timers.Cancel(ctx, b.selection, func(c admin.Cancelled) {
			bar.show("cancelled %d of %d timers, those that are due until %s", c.Cancelled, b.found.Timers, c.Until.Format(timeLayout))
		})
		bar.clear()
	}
	said := fmt.Sprintf("%d cancelled, %d too late", done.Cancelled, done.TooLate)
	if done.Gone > 0 {
		said += fmt.Sprintf(", %d gone meanwhile", done.Gone)
	}
	if _, printErr := fmt.Fprintln(b.cmd.OutOrStdout(), said); printErr != nil {
		return errors.Join(err, printErr)
	}
	if done.Cut {
		fmt.Fprintln(b.cmd.ErrOrStderr(), "timerd: so many timers are owed or firing that not all of these were looked at: try again once some have fired")
	}
	if err == nil {
		return nil
	}
	reached := "none was reached"
	if !done.Until.IsZero() {
		reached = "those that are due until " + done.Until.Format(timeLayout) + " were reached"
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted: of %s %s; call it again for the others", countTimers(b.found.Timers), reached)
	case errors.Is(err, client.ErrInvalid): // not the user's fault
		return fmt.Errorf("the function library in this Redis is of another version: start a timerd of this version on it: %s", err.Error())
	}
	return fmt.Errorf("of %s %s; call it again for the others: %w", countTimers(b.found.Timers), reached, err)
}

// countTimers says how many timers there are.
func countTimers(n int64) string {
	if n == 1 {
		return "1 timer"
	}
	return fmt.Sprintf("%d timers", n)
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
