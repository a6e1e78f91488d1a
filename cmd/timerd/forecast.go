package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Limits and formats of forecasts.
const (
	mostMinutes  = 24 * 60
	minuteLayout = "2006-01-02T15:04Z" // all in UTC
)

func newForecast() *cobra.Command {
	var f forecast
	cmd := &cobra.Command{
		Use:   "forecast [NAMESPACE]",
		Short: "Show how many timers become due in each of the next minutes",
		Long: `Show how many timers become due in the rest of this minute, and in each of the next ones, by the
clock of Redis and in UTC. A repeating timer counts once for each occurrence. Timers that are
already due, held or not, are shown separately.

Redis itself counts the timers of all namespaces. It cannot search by namespace: a forecast for a
namespace reads the names of all timers that are due before its end, at most a million unless
--limit says otherwise. It prints its progress; Ctrl-C ends it.

` + namespaceHelp,
		Example: `  timerd forecast
  timerd forecast shop:order --minutes 15
  timerd forecast --json | jq -s 'max_by(.due)'`,
		Args: arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, err := namespaceArg(cmd, args)
			if err != nil {
				return err
			}
			if f.minutes < 1 || f.minutes > mostMinutes {
				return usagef(cmd, "--minutes=%d: want 1 to %d", f.minutes, mostMinutes)
			}
			if f.limit < 0 {
				return usagef(cmd, "--limit=%d: want 0, for all, or more", f.limit)
			}
			f.cmd, f.namespace = cmd, namespace
			return withSchedule(cmd, f.run)
		},
	}
	cmd.Flags().IntVar(&f.minutes, "minutes", 60, "how many minutes to show")
	cmd.Flags().Int64Var(&f.limit, "limit", 1_000_000, "how many timers to look at for a NAMESPACE; 0 for all")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print a line of JSON for each minute")
	return cmd
}

// forecast is one call of timerd forecast.
type forecast struct {
	cmd       *cobra.Command
	namespace keys.Namespace
	minutes   int
	limit     int64 // 0: none
	asJSON    bool
}

func (f *forecast) run(ctx context.Context, s *schedule.Schedule, rdb redis.UniversalClient) error {
	var seen query.Forecast
	var err error
	if f.namespace == (keys.Namespace{}) {
		if seen, err = query.ForecastAll(ctx, s, f.minutes); err != nil {
			return err
		}
	} else {
		bar := progressOf(f.cmd)
		seen, err = query.ForecastOf(ctx, s, f.namespace, f.minutes, func(seen query.Forecast) bool {
			bar.show("%d of %d timers searched; %d of %d minutes complete", seen.Looked, seen.Total, seen.Known,
				f.minutes)
			return f.limit == 0 || seen.Looked < f.limit
		})
		bar.clear()
	}
	interrupted := ctx.Err() != nil
	if err != nil && !interrupted {
		return err
	}
	if err := f.print(seen); err != nil {
		return err
	}
	f.sayWhatIsMissing(seen)
	if interrupted {
		return errors.New("interrupted")
	}
	warnIfUnattended(ctx, f.cmd, rdb)
	return nil
}

// sayWhatIsMissing prints which timers the forecast leaves out.
func (f *forecast) sayWhatIsMissing(seen query.Forecast) {
	if seen.Known < len(seen.Minutes) {
		fmt.Fprintf(f.cmd.ErrOrStderr(),
			"timerd: %d of %d timers searched: only %d of %d minutes are complete; --limit 0 searches all\n",
			seen.Looked, seen.Total, seen.Known, len(seen.Minutes))
	}
	if seen.Cut {
		fmt.Fprintf(f.cmd.ErrOrStderr(),
			"timerd: %d repeating timers count with all occurrences, the others with the next one only; name a "+
				"NAMESPACE to count all of its\n",
			seen.Expanded)
	}
	if seen.Moving > 0 {
		fmt.Fprintf(f.cmd.ErrOrStderr(), "timerd: the timers of %d slots are left out, because they are moving\n",
			seen.Moving)
	}
}

// minuteView is a minute as --json shows it.
type minuteView struct {
	Minute string `json:"minute"`
	Due    int64  `json:"due"`
}

// print prints the complete minutes.
func (f *forecast) print(seen query.Forecast) error {
	known := seen.Minutes[:seen.Known]
	var sum, most int64
	for _, m := range known {
		sum, most = sum+m.Due, max(most, m.Due)
	}
	out := f.cmd.OutOrStdout()
	if f.asJSON {
		lines := make([]minuteView, len(known))
		for i, m := range known {
			lines[i] = minuteView{m.Begin.Format(time.RFC3339), m.Due}
		}
		return writeLines(out, lines)
	}
	t := tableFor(out, true, column{title: "MINUTE"}, column{title: "DUE", right: true}, column{least: 1})
	room := barWidth
	if t.screen.width > 0 {
		room = t.screen.width - len(minuteLayout) - max(len("DUE"), len(strconv.FormatInt(most, 10))) - 2*len(gap)
	}
	for _, m := range known {
		t.row(m.Begin.Format(minuteLayout), m.Due, bar(m.Due, most, room))
	}
	if err := t.flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%s, and %d due already\n", counted(sum, "timer"), seen.Owed)
	return err
}

// barWidth is the length of the longest bar without a terminal.
const barWidth = 50

// bar returns a bar of a length in proportion to part; most fills the width. It is empty only if part is 0.
func bar(part, most int64, width int) string {
	if part == 0 || width < 1 {
		return ""
	}
	const steps = 8 // per character
	eighths := max(int(float64(part)/float64(most)*float64(width*steps)), 1)
	text := strings.Repeat("█", eighths/steps)
	if rest := eighths % steps; rest > 0 {
		text += string('█' + rune(steps-rest)) // from ▏, one eighth, to ▉, seven
	}
	return text
}
