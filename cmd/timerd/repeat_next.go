package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/cron"
)

// mostOccurrences limits the occurrences printed.
const mostOccurrences = 10_000

// occurrences are the flags of timerd repeat next.
type occurrences struct {
	zone, from string
	n          int
	asJSON     bool
}

func newRepeatNext() *cobra.Command {
	var o occurrences
	cmd := &cobra.Command{
		Use:   "next EXPR",
		Short: "Show the due times of an expression, without setting anything",
		Long: `Show the next due times of an expression. No timer is set, and no server is asked. EXPR is one
argument: a cron expression, or "every" and a duration.

  minute        0-59          five fields; with six the first is the second, 0-59
  hour          0-23
  day of month  1-31          L is the last day
  month         1-12          or JAN-DEC
  day of week   0-7           or SUN-SAT; 0 and 7 are Sunday; 5#2 is the second Friday

A field is * or a list of numbers, ranges 1-5 and steps */15, 10-40/10. If both days are restricted,
one that matches is enough. @hourly, @daily, @weekly, @monthly and @yearly stand for expressions.

A local time that the clock skips is due at the moment of the jump, and one that it shows twice is
due the first time. If the hour is * or */n, the repetition simply goes on.`,
		Example: `  timerd repeat next '0 9 * * 1-5' --tz Europe/Berlin
  timerd repeat next '30 2 * * *' --tz America/New_York --from 2026-03-07T00:00:00Z -n 3
  timerd repeat next 'every 90s'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef(cmd, "want one EXPR, got %d arguments; put quotes around it", len(args))
			}
			return arguments(cobra.ExactArgs(1))(cmd, args)
		},
		ValidArgs: []cobra.Completion{"@hourly", "@daily", "@weekly", "@monthly", "@yearly"},
		RunE:      func(cmd *cobra.Command, args []string) error { return o.run(cmd, args[0]) },
	}
	cmd.Flags().StringVar(&o.zone, "tz", "", "the `ZONE` of a cron expression, such as Europe/Berlin; default: UTC")
	cmd.Flags().StringVar(&o.from, "from", "",
		"begin at `T`: an instant (2026-11-20T09:00:00Z), @unix-ms or a duration from now; default: now")
	cmd.Flags().IntVarP(&o.n, "count", "n", 5, "how many to show")
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "print a line of JSON for each")
	return cmd
}

func (o *occurrences) run(cmd *cobra.Command, expression string) error {
	if o.n < 1 || o.n > mostOccurrences {
		return usagef(cmd, "--count=%d: want a number from 1 to %d", o.n, mostOccurrences)
	}
	spec, err := parseRepetition(expression, o.zone)
	if err != nil {
		return usagef(cmd, "%w", err)
	}
	now := time.Now()
	from, err := momentFlag(cmd, "from", o.from)
	if err != nil {
		return err
	}
	r, after, shown := cron.Repetition{Spec: spec, From: now}, now, now
	if from != nil {
		r.From = from.From(now)
		after, shown = r.From.Add(-time.Millisecond), time.Time{}
	}
	if _, ok := r.Next(after); !ok {
		return usagef(cmd, "EXPR %q: no occurrence in the eight years after %s", expression,
			after.UTC().Format(timeLayout))
	}
	ended, err := printOccurrences(cmd, &r, after, shown, o.n, o.asJSON)
	if err == nil && ended && !o.asJSON {
		_, err = fmt.Fprintln(cmd.OutOrStdout(), "no further occurrence within eight years")
	}
	return err
}

// parseRepetition reads EXPR: a cron expression, or a rhythm as one text, such as "every 5m".
func parseRepetition(text, zone string) (cron.Spec, error) {
	kind, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	switch {
	case kind != "every" && kind != "cron":
		return cron.At(text, zone)
	case zone != "":
		return cron.Spec{}, fmt.Errorf("%q: --tz goes with a cron expression only", text)
	case kind == "cron":
		return cron.Parse(text)
	}
	interval, err := admin.ParseDuration(rest)
	if err != nil {
		return cron.Spec{}, fmt.Errorf("interval %q: %w", rest, err)
	}
	return cron.Every(interval)
}

// occurrenceView is an occurrence as --json shows it.
type occurrenceView struct {
	Due   int64  `json:"due"` // unix ms
	DueAt string `json:"dueat"`
	Local string `json:"local"` // the time in the zone
}

// printOccurrences prints a repetition's occurrences after a time, up to most, with the time left from now, unless
// now is the zero Time. ended is set if there are no more.
func printOccurrences(cmd *cobra.Command, r *cron.Repetition, after, now time.Time, most int,
	asJSON bool) (ended bool, err error) {
	columns := []column{{title: "DUE"}, {title: "IN"}, {title: "LOCAL"}}
	if now.IsZero() {
		columns = slices.Delete(columns, 1, 2)
	}
	table := tableFor(cmd.OutOrStdout(), true, columns...)
	next, ok := r.Next(after)
	for n := 0; ok && n < most && err == nil; n++ {
		local, dueAt := next.In(r.Spec.Location()), next.UTC().Format(timeLayout)
		switch {
		case asJSON:
			err = writeJSON(cmd.OutOrStdout(), occurrenceView{next.UnixMilli(), dueAt, local.Format(timeLayout)})
		case now.IsZero():
			table.row(dueAt, local.Format(occurrenceLayout))
		default:
			table.row(dueAt, showWait(next.Sub(now)), local.Format(occurrenceLayout))
		}
		next, ok = r.Next(next)
	}
	return !ok, cmp.Or(err, table.flush())
}
