package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

func newFire() *cobra.Command {
	return &cobra.Command{
		Use:        "fire KEY",
		SuggestFor: []string{"trigger"},
		Short:      "Fire a timer now",
		Long: `Fire the pending timer of a key now, and a pending retry too. Its due time becomes now, so its event
has a new id. If the timer repeats, its plan stays: this adds a single firing, which is not
an occurrence. The exit code is 1 if there is no pending timer.

` + keyHelp,
		Example: "  timerd fire shop:order:timeout:42",
		Args:    arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return moveKey(cmd, args[0], admin.Moment{}, event.EntryFire)
		},
	}
}

func newMove() *cobra.Command {
	return &cobra.Command{
		Use:        "move KEY DELAY",
		SuggestFor: []string{"reschedule", "delay", "postpone"},
		Short:      "Move a timer to another due time",
		Long: `Move the pending timer of a key to another due time, and a pending retry too. Payload, attempt and
limit on lateness stay. If the timer repeats, only the next occurrence moves; to a time that has
passed, none does: this adds a single firing. The exit code is 1 if there is no pending timer.

` + keyHelp + `
DELAY is a duration from now (90s, 30d), an instant (2026-11-20T09:00:00Z) or @unix-ms.`,
		Example: `  timerd move shop:order:timeout:42 2h
  timerd move shop:report:daily:1 2027-01-01T00:00:00Z`,
		Args: arguments(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			to, err := admin.ParseMoment(args[1])
			if err != nil {
				return usagef(cmd, "DELAY %w", err)
			}
			return moveKey(cmd, args[0], to, event.EntryMove)
		},
	}
}

// moveKey moves the pending timers of a key, and writes that to the history; the zero Moment is now.
func moveKey(cmd *cobra.Command, arg string, to admin.Moment, kind event.EntryKind) error {
	if err := checkKey(cmd, arg); err != nil {
		return err
	}
	journal := newJournal(cmd)
	defer journal.close()
	return withKey(cmd, arg, func(ctx context.Context, rdb redis.UniversalClient, meant string) error {
		key, err := keys.Parse(meant)
		if err != nil {
			return err // cannot happen: the key is checked
		}
		now, err := clockOf(ctx, rdb)
		if err != nil {
			return err
		}
		at := to.From(now)
		done, err := admin.NewTimers(schedule.Open(ctx, rdb, schedule.DefaultMaxPayload)).MoveKey(ctx, key, at)
		if err != nil {
			return err
		}
		name := keys.EncodeText(meant)
		if err := whyNotMoved(done, name); err != nil {
			return err
		}
		noted := admin.TimersEntry(kind, done.Moved, meant)
		if kind == event.EntryMove {
			noted.Detail = "to " + at.UTC().Format(timeLayout)
		}
		journal.Note(ctx, noted)
		warnIfUnattended(ctx, cmd, rdb)
		text := "fires now"
		if at.After(now) {
			at = at.Add(time.Millisecond - time.Nanosecond).Truncate(time.Millisecond) // rounded like in the schedule
			text = "is due at " + at.UTC().Format(timeLayout) + " (" + showWait(at.Sub(now)).text + ")"
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", name, text)
		return err
	})
}

// whyNotMoved returns the reason why no timer was moved; nil if one was.
func whyNotMoved(m admin.Moved, name string) error {
	switch {
	case m.Moved > 0:
		return nil
	case m.Held > 0:
		return fmt.Errorf("%s is held: timerd resume releases it", name)
	case m.TooLate > 0:
		return fmt.Errorf("%s is due already: it is too late", name)
	case m.Denied > 0:
		return fmt.Errorf("the Redis user may not write %s: grant its keys, as in deploy/users.acl", name)
	case m.Changed > 0:
		return errors.New("the timer was changed at the same time: see timerd get, and try again")
	}
	return fmt.Errorf("%s is not pending, held, owed or firing", name)
}
