package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

func newLs() *cobra.Command {
	var l listing
	states := []string{string(query.StatePending), string(query.StateHeld), string(query.StateOwed),
		string(query.StateFiring)}
	cmd := &cobra.Command{
		Use:   "ls [NAMESPACE]",
		Short: "List waiting and firing timers",
		Long: `List timers by due time. A timer is listed until NATS has acknowledged its event. STATE is

  pending  not due yet
  held     due, and its namespace is held
  owed     due, and not claimed yet; it can still be cancelled
  firing   claimed: its event is being published, or may have been

A retry that waits beside a newer timer of its key is marked as beside. Timers that are due and set
aside show the reason: rights, timerd may not read the key; refused, NATS refuses the subject;
guard, timerd may not read the guard.

On a terminal the lines fit its width. Elsewhere they are complete. Redis cannot search by
namespace: a listing reads all timers due before its own. After a second it prints
its progress; Ctrl-C ends it.

` + namespaceHelp,
		Example: `  timerd ls
  timerd ls shop:order --limit 10
  timerd ls --state owed,firing
  timerd ls --repeating
  timerd ls shop --limit 0 --json | jq -r .key`,
		Args: arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, err := namespaceArg(cmd, args)
			if err != nil && checkKey(cmd, args[0]) == nil {
				return usagef(cmd, "%w; for one timer: timerd get %s", err, keys.EncodeText(args[0]))
			}
			if err != nil {
				return err
			}
			if l.limit < 0 {
				return usagef(cmd, "--limit=%d: want 0, for all, or more", l.limit)
			}
			for _, state := range l.states {
				if !slices.Contains(states, state) {
					return usagef(cmd, "--state=%s: want one or more of %s", state, strings.Join(states, ", "))
				}
			}
			l.cmd = cmd
			return withSchedule(cmd, func(ctx context.Context, s *schedule.Schedule, rdb redis.UniversalClient) error {
				return l.run(ctx, s, rdb, namespace)
			})
		},
	}
	cmd.Flags().IntVar(&l.limit, "limit", 100, "how many to list; 0 for all")
	cmd.Flags().StringSliceVar(&l.states, "state", nil,
		"list only timers in a `STATE`, or in several, such as owed,firing")
	cmd.Flags().BoolVar(&l.repeating, "repeating", false, "list only repeating timers, and their retries")
	cmd.Flags().BoolVar(&l.asJSON, "json", false, "print a line of JSON for each")
	// fails only for an unknown flag
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(states, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// listing prints timers while it finds them.
type listing struct {
	cmd    *cobra.Command
	limit  int      // 0: none
	states []string // empty: all
	asJSON bool
	// repeating: only repeating timers.
	repeating bool

	rdb   redis.UniversalClient
	now   time.Time // Redis's, at the beginning
	table *table
	found int
	page  query.Page // the last one
}

func (l *listing) run(ctx context.Context, s *schedule.Schedule, rdb redis.UniversalClient,
	namespace keys.Namespace) error {
	var err error
	if l.now, err = s.Clock(ctx); err != nil {
		return err
	}
	l.rdb = rdb
	columns := []column{
		{title: "DUE", spare: 1},
		{title: "IN"},
		{title: "STATE"},
		{title: "ATTEMPT", spare: 2},
		{title: "KEY", middle: true, least: 20},
		{title: "PAYLOAD", least: 8, spare: 3},
	}
	if l.repeating {
		columns = slices.Insert(columns, len(columns)-1, column{title: "REPEAT", least: 12})
	}
	l.table = tableFor(l.cmd.OutOrStdout(), true, columns...)
	more := false
	told, pause := time.Now(), time.Second
	var printErr error
	err = query.Pages(ctx, s, query.Query{Namespace: namespace}, func(p query.Page) bool {
		p.Timers = slices.DeleteFunc(p.Timers, func(t query.Timer) bool {
			return !l.wants(t.State) || l.repeating &&
				t.Repeat == ""
		})
		if room := l.limit - l.found; l.limit > 0 && len(p.Timers) > room {
			p.Timers, more = p.Timers[:room], true
		}
		l.page = p
		if printErr = l.print(ctx, p.Timers); printErr != nil || l.limit > 0 && l.found == l.limit {
			return false
		}
		if p.Until.After(p.Now) && !l.wants(query.StatePending) {
			return false // it is the last page
		}
		if time.Since(told) > pause {
			l.showProgress("so far")
			printErr = l.table.flush()
			told, pause = time.Now(), 2*pause
		}
		return printErr == nil
	})
	if printErr == nil {
		printErr = l.table.flush() // a second flush would fail with the same error
	}
	if ctx.Err() != nil && printErr == nil {
		l.showProgress("and was interrupted")
		return exitCode(exitFailed)
	}
	err = errors.Join(err, printErr)
	warnIfUnattended(ctx, l.cmd, rdb, namespace)
	if err == nil {
		err = l.sayWhatIsLeft(more)
	}
	return err
}

// wants reports whether to list timers in a state.
func (l *listing) wants(s query.State) bool {
	return len(l.states) == 0 || slices.Contains(l.states, string(s))
}

// sayWhatIsLeft prints at the end that there are no timers, or may be others. more is set if there are.
func (l *listing) sayWhatIsLeft(more bool) (err error) {
	switch {
	case l.found == 0 && !l.asJSON:
		_, err = fmt.Fprintln(l.cmd.OutOrStdout(), "0 timers")
	case more:
		fmt.Fprintf(l.cmd.ErrOrStderr(), "timerd: there are more than these %d; --limit 0 lists all\n", l.found)
	case l.limit > 0 && l.found == l.limit && l.page.Looked < l.page.Total:
		fmt.Fprintf(l.cmd.ErrOrStderr(), "timerd: there may be more than these %d; --limit 0 lists all\n", l.found)
	}
	if l.page.Cut {
		fmt.Fprintf(l.cmd.ErrOrStderr(), "timerd: %v; timerd status counts them\n", query.ErrCut)
	}
	return err
}

// showProgress shows the progress of the listing.
func (l *listing) showProgress(how string) {
	fmt.Fprintf(l.cmd.ErrOrStderr(), "timerd: searched %d of %d timers %s", l.page.Looked, l.page.Total, how)
	if l.page.Looked > 0 {
		fmt.Fprintf(l.cmd.ErrOrStderr(), ", up to %s", l.page.Until.UTC().Format(timeLayout))
	}
	fmt.Fprintf(l.cmd.ErrOrStderr(), "; found %d\n", l.found)
}

// print adds timers to the table, or prints them as JSON.
func (l *listing) print(ctx context.Context, timers []query.Timer) error {
	reasons := l.whyMissing(ctx, timers)
	for _, p := range timers {
		l.found++
		view := newTimerView(p.Key.String(), p.Due, p.Attempt)
		if view.Attempt == 0 {
			view.Attempt = event.Attempt(p.Payload)
		}
		view.Repeat, view.Occurrence = p.Repeat, p.Occurrence
		view.Unless, view.If = keys.EncodeText(p.Guards.Unless), keys.EncodeText(p.Guards.If)
		view.State, view.Beside, view.SetAside = string(p.State), p.Beside, string(p.Parked)
		status := dataStatus(p.Status)
		var err error
		if l.asJSON {
			err = writeJSON(l.cmd.OutOrStdout(), view.withPayload(p.Payload, status))
		} else {
			wait := showWait(p.Due.Sub(l.now))
			if p.Parked != "" {
				wait = cell{"set aside: " + view.SetAside, toneBad}
			}
			if reason, ok := reasons[p.Key]; ok {
				status = reason
			}
			state := view.State
			if p.Beside {
				state += " beside"
			}
			payload := showPayload(p.Payload, status, l.table.screen.most())
			cells := []cell{{text: view.DueAt}, wait, {text: state}, attemptCell(view.Attempt, 0), {text: view.Key},
				{text: payload}}
			if l.repeating {
				cells = slices.Insert(cells, len(cells)-1, cell{text: view.Repeat})
			}
			l.table.add(cells...)
			err = l.table.err
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// whyMissing returns why payloads are missing, of the timers without one.
func (l *listing) whyMissing(ctx context.Context, timers []query.Timer) map[keys.Key]string {
	var missing []keys.Key
	var names []string
	for _, p := range timers {
		if p.Status == schedule.PayloadMissing && !l.asJSON {
			missing, names = append(missing, p.Key), append(names, p.Key.String())
		}
	}
	if len(missing) == 0 {
		return nil
	}
	reasons := map[keys.Key]string{}
	for i, reason := range whyMissing(ctx, l.rdb, names...) {
		reasons[missing[i]] = reason
	}
	return reasons
}

// dataStatus is a payload's status as the event shows it.
func dataStatus(s schedule.Status) string {
	if s == schedule.PayloadTooLarge {
		return event.StatusTooLarge
	}
	return event.StatusMissing
}
