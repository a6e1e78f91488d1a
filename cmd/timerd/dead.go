package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
)

// letterTimeout is how long JetStream may take to hand a letter over.
const letterTimeout = 10 * time.Second

func newDead() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dead",
		Short: "List, replay or purge dead letters",
		Long: `Dead letters are events whose attempts are used up, or on which a consumer has given up. They stay in
their stream until they are replayed or purged.`,
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
		Long:  "List dead letters, oldest first.\n\n" + namespaceHelp,
		Example: `  timerd dead ls
  timerd dead ls shop:order --json --limit 0 > dead.jsonl`,
		Args: arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return usagef(cmd, "--limit=%d: want 0, for all, or more", limit)
			}
			return withDeadLetters(cmd, args, 0, sectionNATS, func(all *deadLetters, _ config, _ *slog.Logger) error {
				return listDead(cmd, all, limit, asJSON)
			})
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 100, "how many to list; 0 for all")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the events themselves, each in a line")
	return cmd
}

func listDead(cmd *cobra.Command, all *deadLetters, limit int, asJSON bool) error {
	table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	rows, more := 0, false
	err := all.each(cmd.Context(), func(l letter) (bool, error) {
		if limit > 0 && rows == limit {
			more = true
			return false, nil
		}
		if rows++; asJSON {
			return true, printFiringJSON(cmd.OutOrStdout(), l.data)
		}
		if rows == 1 {
			fmt.Fprintln(table, "SEQ\tSTORED\tKEY\tATTEMPT\tREASON\tLAST ERROR")
		}
		at := l.stored.UTC().Format(timeLayout)
		if l.fault != "" {
			_, err := fmt.Fprintf(table, "%d\t%s\t%s\t\tnot an event: %s\t\n", l.seq, at, l.subject, l.fault)
			return true, err
		}
		_, err := fmt.Fprintf(table, "%d\t%s\t%s\t%d\t%s\t%s\n", l.seq, at, keys.EncodeText(l.event.Key.String()), l.event.Attempt,
			showText(l.event.DeadReason), showText(l.event.LastError))
		return true, err
	})
	if more {
		fmt.Fprintf(cmd.ErrOrStderr(), "timerd: there are more than these %d; --limit 0 lists all\n", rows)
	}
	return errors.Join(err, table.Flush())
}

// showText returns a text in one cell of a table.
func showText(s string) string {
	if s == "" {
		return ""
	}
	return showPayload([]byte(s), "", lsPayload)
}

func newDeadReplay() *cobra.Command {
	var seq uint64
	cmd := &cobra.Command{
		Use:   "replay {NAMESPACE | --seq N}",
		Short: "Let the timers of dead letters fire again",
		Long: `Set the timer of each dead letter again, to fire at once as attempt 1, and take the letter out of its
stream. Left where they are, each with a line that says why, are letters whose timer has been set again
meanwhile, whose payload is lost, and what is no event. Then the exit code is 1.

` + namespaceHelp + ` Write '*' for all.`,
		Example: `  timerd dead replay shop:order
  timerd dead replay --seq 42`,
		Args: arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 0) == (seq == 0) {
				return usagef(cmd, "want either a NAMESPACE, '*' for all, or --seq")
			}
			return withDeadLetters(cmd, args, seq, sectionNATS|sectionRedis, func(all *deadLetters, c config, log *slog.Logger) error {
				rdb, err := openRedis(cmd, c, log)
				if err != nil {
					return err
				}
				return errors.Join(replay(cmd.Context(), cmd.OutOrStdout(), all, client.New(rdb)), rdb.Close())
			})
		},
	}
	cmd.Flags().Uint64Var(&seq, "seq", 0, "only the letter with this number, of any namespace; timerd dead ls shows it")
	return cmd
}

// replay sets timers again. A letter is deleted only after its timer is set, so
// that an interruption loses none.
func replay(ctx context.Context, w io.Writer, all *deadLetters, timers *client.Timers) error {
	replayed, left := 0, 0
	err := all.each(ctx, func(l letter) (bool, error) {
		why, err := setAgain(ctx, timers, l)
		if err != nil {
			return false, err
		}
		if why != "" {
			left++
			_, err := fmt.Fprintf(w, "%d left: %s\n", l.seq, why)
			return true, err
		}
		if err := all.stream.DeleteMsg(ctx, l.seq); err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
			return false, fmt.Errorf("the timer of letter %d is set, but the letter could not be deleted: %w", l.seq, err)
		}
		replayed++
		_, err = fmt.Fprintf(w, "%d replayed: %s\n", l.seq, keys.EncodeText(l.event.Key.String()))
		return true, err
	})
	fmt.Fprintf(w, "%d replayed, %d left\n", replayed, left)
	if err == nil && left > 0 {
		return exitCode(exitFailed)
	}
	return err
}

// setAgain sets the timer of a letter, or says why not.
func setAgain(ctx context.Context, timers *client.Timers, l letter) (why string, err error) {
	switch {
	case l.fault != "":
		return "not an event: " + l.fault, nil
	case strings.HasPrefix(l.event.DeadReason, "malformed"):
		return "it stands for a message that is no event: timerd dead ls --json shows it", nil
	case l.event.Status == event.StatusTooLarge:
		return keys.EncodeText(l.event.Key.String()) + ": its payload was too large and is lost", nil
	}
	_, err = timers.Set(ctx, l.event.Key.String(), l.event.Data, client.After(time.Millisecond), client.NX(), client.Attempt(1))
	switch {
	case errors.Is(err, client.ErrNotSet):
		return keys.EncodeText(l.event.Key.String()) + ": the timer, or a key of its name, is set again already", nil
	case errors.Is(err, client.ErrInvalid):
		return err.Error(), nil
	}
	return "", err
}

func newDeadPurge() *cobra.Command {
	var seq uint64
	var olderThan time.Duration
	cmd := &cobra.Command{
		Use:   "purge {NAMESPACE | --seq N}",
		Short: "Delete dead letters for good",
		Long:  "Delete dead letters for good.\n\n" + namespaceHelp + " Write '*' for all.",
		Example: `  timerd dead purge '*' --older-than 720h
  timerd dead purge --seq 42`,
		Args: arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 0) == (seq == 0) {
				return usagef(cmd, "want either a NAMESPACE, '*' for all, or --seq")
			}
			if olderThan < 0 || olderThan > 0 && seq > 0 {
				return usagef(cmd, "--older-than=%v: want a positive duration, and no --seq", olderThan)
			}
			return withDeadLetters(cmd, args, seq, sectionNATS, func(all *deadLetters, _ config, _ *slog.Logger) error {
				purged, err := all.purge(cmd.Context(), olderThan)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d purged\n", purged)
				return err
			})
		},
	}
	cmd.Flags().Uint64Var(&seq, "seq", 0, "only the letter with this number, of any namespace; timerd dead ls shows it")
	cmd.Flags().DurationVar(&olderThan, "older-than", 0, "only letters that were stored so long ago, such as 720h")
	return cmd
}

// letter is one message of the stream of dead letters.
type letter struct {
	seq     uint64
	stored  time.Time
	subject string
	data    []byte
	event   event.Event
	fault   string // why the data are no event, "" if they are one
}

// deadLetters are the letters that were there when the command began.
type deadLetters struct {
	stream  jetstream.Stream
	subject string
	first   uint64 // sequence numbers, both included
	last    uint64
	one     bool // only the letter first, of whatever subject
}

// withDeadLetters calls f with the letters of the namespace in args, or with the
// one of a sequence number, and with the sections of the configuration.
func withDeadLetters(cmd *cobra.Command, args []string, seq uint64, sections section, f func(*deadLetters, config, *slog.Logger) error) error {
	namespace, err := namespaceArg(cmd, args)
	if err != nil {
		return err
	}
	c, log, err := commandConfig(cmd, sections)
	if err != nil {
		return err
	}
	nc, err := openNATS(cmd, c, log)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	stream, err := js.Stream(ctx, c.NATS.Streams.Dead())
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("there is no stream %s: timerd makes it at its start; TIMERD_STREAM names another one", c.NATS.Streams.Dead())
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", c.NATS.Streams.Dead(), err)
	}
	state := stream.CachedInfo().State
	all := &deadLetters{stream: stream, subject: namespace.Subject(c.NATS.Streams.Prefix, keys.Dead), first: state.FirstSeq, last: state.LastSeq}
	if seq > 0 {
		if _, err := stream.GetMsg(ctx, seq); err != nil {
			return fmt.Errorf("stream %s: letter %d: %w", c.NATS.Streams.Dead(), seq, err)
		}
		all.first, all.last, all.one = seq, seq, true
	}
	return f(all, c, log)
}

// purge deletes the one letter, or those that were stored that long ago, and
// returns how many there were.
func (d *deadLetters) purge(ctx context.Context, olderThan time.Duration) (int, error) {
	if d.one {
		if err := d.stream.DeleteMsg(ctx, d.last); err != nil {
			return 0, fmt.Errorf("delete letter %d: %w", d.last, err)
		}
		return 1, nil
	}
	purged, end := 0, d.last+1
	young := time.Now().Add(-olderThan)
	err := d.each(ctx, func(l letter) (bool, error) {
		if olderThan > 0 && l.stored.After(young) {
			end = l.seq // letters come in the order in which they were stored
			return false, nil
		}
		purged++
		return true, nil
	})
	if err != nil || purged == 0 {
		return 0, err
	}
	if err := d.stream.Purge(ctx, jetstream.WithPurgeSubject(d.subject), jetstream.WithPurgeSequence(end)); err != nil {
		return 0, fmt.Errorf("purge the dead letters: %w", err)
	}
	return purged, nil
}

// each calls f for each letter, oldest first, until it returns false or an error.
func (d *deadLetters) each(ctx context.Context, f func(letter) (bool, error)) error {
	consumer, err := d.stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{d.subject},
		DeliverPolicy:  jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:    max(d.first, 1),
	})
	if err != nil {
		return fmt.Errorf("read the dead letters: %w", err)
	}
	if consumer.CachedInfo().NumPending == 0 {
		return nil
	}
	messages, err := consumer.Messages()
	if err != nil {
		return fmt.Errorf("read the dead letters: %w", err)
	}
	defer messages.Stop()
	for {
		l, left, err := nextLetter(ctx, messages)
		if err != nil {
			return fmt.Errorf("read the dead letters: %w", err)
		}
		if l.seq > d.last {
			return nil
		}
		more, err := f(l)
		if err != nil || !more || l.seq == d.last || left == 0 {
			return err
		}
	}
}

// nextLetter returns a letter and how many there are after it.
func nextLetter(ctx context.Context, messages jetstream.MessagesContext) (letter, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, letterTimeout)
	defer cancel()
	m, err := messages.Next(jetstream.NextContext(ctx))
	if err != nil {
		return letter{}, 0, err
	}
	meta, err := m.Metadata()
	if err != nil {
		return letter{}, 0, err
	}
	l := letter{seq: meta.Sequence.Stream, stored: meta.Timestamp, subject: m.Subject(), data: m.Data()}
	if l.event, err = event.Parse(l.data); err != nil {
		l.fault = err.Error()
	}
	return l, meta.NumPending, nil
}
