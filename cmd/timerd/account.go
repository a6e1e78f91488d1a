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

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/ledger"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/schedule"
)

func newAccount() *cobra.Command {
	var asJSON bool
	var since, day string
	cmd := &cobra.Command{
		Use:   "account",
		Short: "Show whether a timer was lost",
		Long: `Show how many timers have entered the schedule, how many have left it, and how many are there. Redis
counts them in the very steps that set and fire them, so the account is exact through crashes,
restarts and failovers: opening + in - out = there. A
difference means that timers were lost, or that somebody wrote to timerd's keys.

The account of a partition begins once every timerd alive counts. Skipped occurrences of timers that
repeat count as repeated and as skipped.

The stream TIMERS must have stored as many events as were fired since the comparison began, except
for those in flight. So the unexplained events are a range, and it must include 0.

A timerd copies the account each hour, and keeps the copies for 30 days. With --since or --day the
account begins, and with --day it ends, at the copy nearest to that time.

The exit code is 1 if the account differs, if events have been unexplained for a minute, or if the
account is left out for some partitions or NATS does not answer.`,
		Example: `  timerd account
  timerd account --json | jq .difference
  timerd account --since 12h
  timerd account --day 2026-11-25`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			span, err := parseSpan(since, day, time.Now())
			if err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			return withSchedule(cmd, func(_ context.Context, s *schedule.Schedule, _ redis.UniversalClient) error {
				sheet, err := takeAccount(cmd, s, span)
				if err != nil {
					return explainMode(err)
				}
				return sheet.show(cmd, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the account as JSON")
	cmd.Flags().StringVar(&since, "since", "", "since so long ago, as 12h or 7d, or since an instant, in RFC 3339")
	cmd.Flags().StringVar(&day, "day", "", "the account of a day, as 2026-11-25, in this machine's time zone")
	cmd.MarkFlagsMutuallyExclusive("since", "day")
	return cmd
}

// span is the time of an account that is asked for; zero times are the beginning of the account, and now.
type span struct{ from, until time.Time }

// parseSpan reads --since and --day.
func parseSpan(since, day string, now time.Time) (span, error) {
	if day != "" {
		from, err := time.ParseInLocation(time.DateOnly, day, time.Local)
		if err != nil {
			return span{}, fmt.Errorf("--day: %q: want a day such as 2026-11-25", day)
		}
		if from.After(now) {
			return span{}, fmt.Errorf("--day: %s lies ahead", day)
		}
		return span{from, from.AddDate(0, 0, 1)}, nil
	}
	from, err := parseSince(since, now)
	return span{from: from}, err
}

// parseSince reads --since: the zero Time if it is not given.
func parseSince(since string, now time.Time) (time.Time, error) {
	if since == "" {
		return time.Time{}, nil
	}
	m, err := admin.ParseMoment(since)
	if err != nil {
		return time.Time{}, fmt.Errorf("--since: %w", err)
	}
	at, isInstant := m.Instant()
	if !isInstant {
		at = now.Add(-m.In())
	}
	if at.After(now) {
		return time.Time{}, fmt.Errorf("--since: %s lies ahead", at.Format(time.RFC3339))
	}
	return at, nil
}

// sheet is what timerd account shows.
type sheet struct {
	schedule.Account
	Until  time.Time          `json:"until,omitzero"`   // zero: now
	Events *ledger.Comparison `json:"events,omitempty"` // since the comparison began; nil for a span

	problem  string // why events are unexplained, or not compared
	differed bool   // at the beginning of a span, and not at its end
}

// takeAccount returns the account of a span.
func takeAccount(cmd *cobra.Command, s *schedule.Schedule, of span) (*sheet, error) {
	ctx, whole := cmd.Context(), of == span{}
	account, err := s.Account(ctx)
	if err != nil || account.Since.IsZero() {
		return &sheet{Account: account}, err
	}
	var is *sheet
	err = withJetStream(cmd, config.SectionNATS, func(js jetstream.JetStream, c config.Config) (err error) {
		if whole {
			is, err = compareAccount(ctx, ledger.Sources{Schedule: s, JetStream: js, Streams: c.Streams()})
			return err
		}
		if !account.IsWhole() || len(s.PassedOver()) > 0 {
			return errors.New("the account lacks partitions now: ask again once it is whole; see timerd account")
		}
		copies, err := ledger.Copies(ctx, js, c.Streams())
		if err != nil {
			return fmt.Errorf("stream %s: %w", c.Streams().StateStream(), err)
		}
		is, err = spanOf(copies, ledger.Copy{At: time.Now(), Account: account}, of)
		return err
	})
	if err != nil && whole {
		return &sheet{Account: account, problem: "the account is not compared with the events: " + err.Error()}, nil
	}
	return is, err
}

// compareAccount returns the account beside the events.
func compareAccount(ctx context.Context, s ledger.Sources) (*sheet, error) {
	account, events, err := s.Compare(ctx)
	if err != nil {
		return nil, err
	}
	is := &sheet{Account: account, Events: &events}
	if events.Differs() {
		text, fix := status.Unexplained(events, s.Streams.Names)
		is.problem = text + "; " + fix
	}
	return is, nil
}

// spanOf returns the account of a span from the copies and the present account.
func spanOf(copies []ledger.Copy, now ledger.Copy, of span) (*sheet, error) {
	if len(copies) == 0 {
		return nil, errors.New("there is no copy of the account: a running timerd makes one each hour")
	}
	from, to := ledger.Nearest(copies, of.from), now
	if !of.until.IsZero() && of.until.Before(now.At) {
		to = ledger.Nearest(copies, of.until)
	}
	if !from.At.Before(to.At) {
		return nil, fmt.Errorf("there is no copy of the account from that time; the first one is of %s",
			copies[0].At.Format(timeLayout))
	}
	account, ok := ledger.Between(from, to)
	if !ok {
		return nil, fmt.Errorf("an account began between %s and %s, so that there is none of the whole time",
			from.At.Format(timeLayout), to.At.Format(timeLayout))
	}
	return &sheet{Account: account, Until: to.At, differed: to.Account.Difference == 0}, nil
}

// show prints an account, and on standard error why it differs or is incomplete.
func (s *sheet) show(cmd *cobra.Command, asJSON bool) (err error) {
	a := s.Account
	if asJSON {
		err = writeJSON(cmd.OutOrStdout(), s)
	} else if !a.Since.IsZero() {
		err = s.print(cmd.OutOrStdout())
	}
	say := func(format string, args ...any) {
		fmt.Fprintf(cmd.ErrOrStderr(), "timerd: "+format+"\n", args...)
	}
	switch {
	case err != nil:
		return err
	case len(a.Differences) > 0:
		say("the account differs: %s; %s", status.DescribeDifferences(a), status.AccountFix(a))
	case a.Difference != 0 && s.differed:
		say("the account differed when this time began, and does not any more")
		return nil
	case a.Difference != 0:
		say("the account differs; run: timerd account")
	case a.Without > 0:
		say("%s without an account: it begins within a minute once every timerd alive counts, and the one started last",
			counted(a.Without, "partition"))
	case a.Moving > 0:
		say("%s left out, because they are moving", counted(a.Moving, "slot"))
	case s.problem != "":
		say("%s", s.problem)
	case a.Since.IsZero():
		say("there is no account: it begins once a timerd runs, in a cluster within a minute of the first timer")
		return nil
	default:
		return nil
	}
	return exitCode(exitFailed)
}

// print prints the account as a table.
func (s *sheet) print(w io.Writer) error {
	a, span := s.Account, "since "+s.Since.Format(timeLayout)
	if !s.Until.IsZero() {
		span += " until " + s.Until.UTC().Format(timeLayout)
	}
	if _, err := fmt.Fprintln(w, span); err != nil {
		return err
	}
	t := tableFor(w, false, column{title: "TIMERS", right: true}, column{title: "KIND"})
	t.row(fmt.Sprint(a.Opening), "opening")
	for _, part := range []struct {
		sum   int64
		name  string
		kinds []schedule.AccountCount
	}{
		{a.In.Sum(), "in", a.In.Kinds()},
		{a.Out.Sum(), "out", a.Out.Kinds()},
		{a.There.Sum(), "there", a.There.Kinds()},
	} {
		t.row(fmt.Sprint(part.sum), part.name)
		for _, kind := range part.kinds {
			t.row(fmt.Sprint(kind.Timers), "  "+kind.Kind)
		}
	}
	t.row(fmt.Sprint(a.Difference), "difference")
	if err := t.flush(); err != nil || s.Events == nil {
		return err
	}
	_, err := fmt.Fprintln(w, describeEvents(*s.Events))
	return err
}

// describeEvents describes the events beside the account.
func describeEvents(c ledger.Comparison) string {
	if c.Missing != "" {
		return "events are not compared: " + c.Missing
	}
	unexplained := fmt.Sprint(c.Least)
	if c.Most != c.Least {
		unexplained = fmt.Sprintf("%d to %d", c.Least, c.Most)
	}
	return fmt.Sprintf("events since %s: %d stored, %d fired, %s unexplained", c.Since.Format(timeLayout), c.Stored,
		c.Fired, unexplained)
}
