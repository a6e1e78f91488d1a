package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/notify"
	"github.com/timerd-io/timerd/schedule"
)

func newDead() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dead",
		Short: "List, replay or purge dead letters",
		Long: `Dead letters are events whose attempts are used up, or on which a consumer has given up, and retry
requests that make no sense. They stay in their stream until they are replayed or purged.`,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return usagef(cmd, "want ls, replay or purge") },
	}
	cmd.AddCommand(newDeadLs(), newDeadReplay(), newDeadPurge())
	return cmd
}

func newDeadLs() *cobra.Command {
	var limit int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls [NAMESPACE]",
		Short: "List dead letters, oldest first",
		Long:  "List dead letters, oldest first, and how many there are.\n\n" + namespaceHelp,
		Example: `  timerd dead ls
  timerd dead ls shop:order --json --limit 0 > dead.jsonl`,
		Args: arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return usagef(cmd, "--limit=%d: want 0, for all, or more", limit)
			}
			return withDeadLetters(cmd, selection{args: args}, sectionNATS, func(all *deadLetters, _ config, _ *slog.Logger) error {
				return listDead(cmd, all, limit, asJSON)
			})
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 100, "how many to list; 0 for all")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the events themselves, each in a line of JSON")
	return cmd
}

func listDead(cmd *cobra.Command, all *deadLetters, limit int, asJSON bool) error {
	table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	rows := 0
	more := false
	err := all.each(cmd.Context(), func(l letter) (bool, error) {
		if limit > 0 && rows == limit {
			more = true
			return false, nil
		}
		rows++
		if asJSON && l.fault != "" {
			return true, writeJSON(cmd.OutOrStdout(), l.view())
		}
		if asJSON {
			return true, printFiringJSON(cmd.OutOrStdout(), l.data)
		}
		if rows == 1 {
			fmt.Fprintln(table, "SEQ\tSTORED\tKEY\tATTEMPT\tREASON\tLAST ERROR\tID")
		}
		at := l.stored.UTC().Format(timeLayout)
		if l.fault != "" {
			_, err := fmt.Fprintf(table, "%d\t%s\t%s\t\tnot an event: %s\t\t%s\n", l.seq, at, l.subject, showText(l.fault), showText(l.id()))
			return true, err
		}
		_, err := fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", l.seq, at, keys.EncodeText(l.event.Key.String()), showAttempt(l.event),
			showText(l.event.DeadReason), showText(l.event.LastError), l.id())
		return true, err
	})
	err = errors.Join(err, table.Flush())
	switch {
	case more:
		fmt.Fprintf(cmd.ErrOrStderr(), "timerd: there are more than these %d; --limit 0 lists all\n", rows)
	case !asJSON && err == nil:
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", countLetters(rows))
	}
	return err
}

// countLetters says how many dead letters there are.
func countLetters(n int) string {
	if n == 1 {
		return "1 dead letter"
	}
	return fmt.Sprintf("%d dead letters", n)
}

// showAttempt returns which attempt it was, of how many if that is known.
func showAttempt(e event.Event) string {
	if e.MaxAttempts == 0 {
		return fmt.Sprint(e.Attempt)
	}
	return fmt.Sprintf("%d/%d", e.Attempt, e.MaxAttempts)
}

// showText returns a text in one cell of a table.
func showText(s string) string {
	if s == "" {
		return ""
	}
	return showPayload([]byte(s), "", lsPayload)
}

const selectionHelp = `

The dead letters of NAMESPACE, or only those with --id or --seq, or else all. How many there are is told, and
asked whether to go on, unless there are none or --yes is given. Without an answer nothing happens and the exit
code is 1.

` + namespaceHelp

// selectionFlags adds the flags that say which letters a command is for.
func selectionFlags(cmd *cobra.Command, s *selection, yes *bool) {
	cmd.Flags().StringVar(&s.id, "id", "", "only letters with this id, of any namespace; timerd dead ls shows it")
	cmd.Flags().Uint64Var(&s.seq, "seq", 0, "only the letter with this number in its stream, of any namespace")
	cmd.Flags().BoolVarP(yes, "yes", "y", false, "do not ask")
}

func newDeadReplay() *cobra.Command {
	var chosen selection
	var yes bool
	cmd := &cobra.Command{
		Use:   "replay [NAMESPACE | --id ID | --seq N]",
		Short: "Let the timers of dead letters fire again",
		Long: `Set the timer of each dead letter again, to fire at once as attempt 1, and take the letter out of its
stream. A timer of the same key that was set meanwhile stays, and both fire. An interrupted replay can be
repeated: each timer is set once. Letters without a timer in them are left where they are, each with a line
that says why; the exit code is then 1.` + selectionHelp,
		Example: `  timerd dead replay shop:order
  timerd dead replay --id shop:order:timeout:42@1763629200000.16 --yes`,
		Args: arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			chosen.args = args
			return withDeadLetters(cmd, chosen, sectionNATS|sectionRedis, func(all *deadLetters, c config, log *slog.Logger) error {
				rdb, err := openRedis(cmd, c, log)
				if err != nil {
					return err
				}
				return errors.Join(replay(cmd, all, rdb, yes), rdb.Close())
			})
		},
	}
	selectionFlags(cmd, &chosen, &yes)
	return cmd
}

// replay sets timers again. A letter is deleted only after its timer is set, so
// that an interruption loses none.
func replay(cmd *cobra.Command, all *deadLetters, rdb redis.UniversalClient, yes bool) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	var good []uint64
	skipped := 0
	err := all.each(ctx, func(l letter) (bool, error) {
		if _, why := l.retry(0); why != "" {
			skipped++
			_, err := fmt.Fprintf(out, "%d skipped: %s\n", l.seq, why)
			return true, err
		}
		good = append(good, l.seq)
		return true, nil
	})
	if err != nil {
		return err
	}
	if len(good) > 0 && !yes {
		if err := confirm(cmd, fmt.Sprintf("%s to replay, each timer fires at once. Go on?", countLetters(len(good)))); err != nil {
			return err
		}
	}
	replayed, err := all.replay(ctx, out, rdb, good)
	fmt.Fprintf(out, "%d replayed, %d skipped\n", replayed, skipped)
	if err == nil && skipped > 0 {
		return exitCode(exitFailed)
	}
	return err
}

// replay sets the timers of the letters with the given numbers, and returns how
// many.
func (d *deadLetters) replay(ctx context.Context, out io.Writer, rdb redis.UniversalClient, good []uint64) (replayed int, err error) {
	now, err := rdb.Time(ctx).Result()
	if err != nil {
		return 0, fmt.Errorf("read the clock of Redis: %w", err)
	}
	sched := schedule.New(rdb, schedule.DefaultMaxPayload)
	for _, seq := range good {
		l, err := d.get(ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue // somebody else was faster
		}
		if err != nil {
			return replayed, err
		}
		timer, _ := l.retry(now.UnixMilli())
		_, fresh, err := sched.Retry(ctx, timer)
		if err != nil {
			return replayed, err
		}
		if err := d.delete(ctx, seq); err != nil {
			return replayed, fmt.Errorf("the timer of letter %d is set, but the letter could not be deleted: %w", seq, err)
		}
		replayed++
		how := "replayed"
		if !fresh {
			how = "was replayed before"
		}
		if _, err := fmt.Fprintf(out, "%d %s: %s\n", seq, how, keys.EncodeText(l.event.Key.String())); err != nil {
			return replayed, err
		}
	}
	return replayed, nil
}

// retry returns the timer of a letter, to be set again at due, or says why there is
// none.
func (l letter) retry(due int64) (r schedule.Retry, why string) {
	switch {
	case l.fault != "":
		return r, "not an event: " + l.fault
	case strings.HasPrefix(l.event.DeadReason, notify.ReasonMalformed):
		return r, "it holds no timer but a message that made no sense: timerd dead ls --json shows it"
	}
	return notify.Replay(l.event, due), ""
}

func newDeadPurge() *cobra.Command {
	var chosen selection
	var yes bool
	var olderThan time.Duration
	cmd := &cobra.Command{
		Use:   "purge [NAMESPACE | --id ID | --seq N]",
		Short: "Delete dead letters for good",
		Long:  "Delete dead letters for good." + selectionHelp,
		Example: `  timerd dead purge --older-than 720h
  timerd dead purge shop:order --yes`,
		Args: arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			chosen.args = args
			if olderThan < 0 {
				return usagef(cmd, "--older-than=%v: want a positive duration", olderThan)
			}
			return withDeadLetters(cmd, chosen, sectionNATS, func(all *deadLetters, _ config, _ *slog.Logger) error {
				return purge(cmd, all, olderThan, yes)
			})
		},
	}
	selectionFlags(cmd, &chosen, &yes)
	cmd.Flags().DurationVar(&olderThan, "older-than", 0, "only letters that were stored so long ago, such as 720h")
	return cmd
}

func purge(cmd *cobra.Command, all *deadLetters, olderThan time.Duration, yes bool) error {
	ctx := cmd.Context()
	var doomed []uint64
	young := time.Now().Add(-olderThan)
	err := all.each(ctx, func(l letter) (bool, error) {
		if olderThan > 0 && l.stored.After(young) {
			return false, nil // letters come in the order in which they were stored
		}
		doomed = append(doomed, l.seq)
		return true, nil
	})
	if err != nil {
		return err
	}
	if len(doomed) > 0 {
		if !yes {
			if err := confirm(cmd, fmt.Sprintf("%s to delete for good. Go on?", countLetters(len(doomed)))); err != nil {
				return err
			}
		}
		if err := all.purge(ctx, doomed); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d purged\n", len(doomed))
	return err
}

// confirm asks a question on standard error and returns nil for a yes on standard
// input.
func confirm(cmd *cobra.Command, question string) error {
	fmt.Fprintf(cmd.ErrOrStderr(), "timerd: %s [y/N] ", question)
	answered := make(chan string, 1)
	go func() {
		answer, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
		if err != nil && answer == "" {
			close(answered)
			return
		}
		answered <- strings.ToLower(strings.TrimSpace(answer))
	}()
	select {
	case answer, ok := <-answered:
		switch {
		case !ok:
			fmt.Fprintln(cmd.ErrOrStderr())
			return errors.New("nothing was done: there is no answer on standard input; give --yes to go on without one")
		case answer != "y" && answer != "yes":
			return errors.New("nothing was done")
		}
		return nil
	case <-cmd.Context().Done():
		return errors.New("nothing was done")
	}
}
