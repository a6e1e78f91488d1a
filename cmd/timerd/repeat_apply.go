package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/yamlfile"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

func newRepeatApply() *cobra.Command {
	var a repeatApply
	cmd := &cobra.Command{
		Use:   "apply -f FILE [--prune NAMESPACE] [--dry-run]",
		Short: "Make timers repeat as a file says",
		Long: `Make timers repeat as a file says, and only change what is not so yet. What changes is printed
first: + is added, ~ is changed, - is removed. --dry-run ends there. Where the file has faults, each
is told with its line, and nothing is changed.

  repeat:
    - key: shop:report:daily:1       # needed
      cron: '0 9 * * 1-5'            # or every: 5m
      tz: Europe/Berlin              # of cron; UTC by default
      payload: {to: sales}           # a text as it is, all else as JSON
      from: 2026-12-01T00:00:00Z     # nothing is due before
      until: 2027-11-30T00:00:00Z    # the last moment at which it may be due
      times: 100                     # how often it fires in all
      catchup: 1d                    # make up for what was missed in the last day
      late: 1h                       # how late it may fire
      drop_late: true                # be forgotten then

A repetition that is changed counts from 1 again, and its interval keeps its grid if it stays the
same. What others have set is left alone, unless --prune NAMESPACE is given: then what repeats there
and is not in the file is cancelled, with its retries.

` + namespaceHelp,
		Example: `  timerd repeat apply -f repeats.yaml --dry-run
  timerd repeat apply -f repeats.yaml --prune shop`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 || a.file == "" {
				return usagef(cmd, "want -f FILE, and no arguments")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.cmd = cmd
			return a.run()
		},
	}
	cmd.Flags().StringVarP(&a.file, "file", "f", "", "the `FILE`; - reads standard input")
	cmd.Flags().StringVar(&a.prune, "prune", "", "cancel what repeats in a `NAMESPACE` and is not in the file")
	cmd.Flags().BoolVar(&a.dryRun, "dry-run", false, "only show what would change")
	return cmd
}

// repeatApply is a call of timerd repeat apply.
type repeatApply struct {
	cmd         *cobra.Command
	file, prune string
	dryRun      bool

	schedule *schedule.Schedule
	timers   *client.Timers
	done     appliedChanges
}

// appliedChanges is what came of changes.
type appliedChanges struct{ added, changed, removed, refused int }

func (a *repeatApply) run() error {
	var pruned *keys.Namespace
	if a.cmd.Flags().Changed("prune") {
		n, err := keys.ParseNamespace(a.prune)
		if err != nil {
			return usagef(a.cmd, "--prune: %w", err)
		}
		pruned = &n
	}
	text, err := a.read()
	if err != nil {
		return err
	}
	wanted, faults := parseRepetitions(text)
	if len(faults) > 0 {
		return a.refuse(faults)
	}
	return withRedis(a.cmd, func(ctx context.Context, rdb redis.UniversalClient) error {
		a.schedule, a.timers = schedule.New(rdb, schedule.DefaultMaxPayload), client.New(rdb)
		now, err := clockOf(ctx, rdb)
		if err != nil {
			return err
		}
		todo, faults, err := a.compare(ctx, wanted, now)
		switch {
		case err != nil:
			return err
		case len(faults) > 0:
			return a.refuse(faults)
		case pruned != nil:
			if err := a.surplus(ctx, *pruned, wanted, todo); err != nil {
				return err
			}
		}
		warnIfUnattended(ctx, a.cmd, rdb)
		return a.carryOut(ctx, todo)
	})
}

// read reads the file.
func (a *repeatApply) read() ([]byte, error) {
	if a.file != "-" {
		text, err := os.ReadFile(a.file)
		if err != nil {
			err = fmt.Errorf("--file: %w", err)
		}
		return text, err
	}
	sayReading(a.cmd, "what is to repeat, in YAML,")
	in := openStdin(a.cmd)
	defer func() { _ = in.Close() }() // never fails
	text, err := io.ReadAll(in)
	if err != nil {
		err = fmt.Errorf("read standard input: %w; nothing was changed", err)
	}
	return text, err
}

// refuse tells the faults of the file, and ends the command.
func (a *repeatApply) refuse(faults yamlfile.Faults) error {
	for _, f := range faults {
		fmt.Fprintf(a.cmd.ErrOrStderr(), "timerd: %s: %s\n", a.file, f)
	}
	fmt.Fprintln(a.cmd.ErrOrStderr(), "timerd: nothing was changed")
	return exitCode(exitUsage)
}

// repetitionsAtOnce is how many keys are looked at together, with their payloads.
const repetitionsAtOnce = 500

// compare returns what the file asks for, and what is wrong with it at the time.
func (a *repeatApply) compare(ctx context.Context, wanted []wantedRepetition, now time.Time) (*changes, yamlfile.Faults, error) {
	todo := &changes{now: now}
	var faults yamlfile.Faults
	for first := 0; first < len(wanted); first += repetitionsAtOnce {
		some := wanted[first:min(first+repetitionsAtOnce, len(wanted))]
		names := make([]string, len(some))
		for i := range some {
			names[i] = some[i].key
		}
		states, err := a.states(ctx, names)
		if err != nil {
			return nil, nil, err
		}
		for i := range some {
			c, err := changeOf(&some[i], states[i], now)
			if err != nil {
				faults = append(faults, yamlfile.Fault{Line: some[i].line, Text: err.Error()})
			}
			todo.list = append(todo.list, c)
		}
	}
	return todo, faults, nil
}

// states returns what the keys repeat by, or an error if that cannot be told of one of them.
func (a *repeatApply) states(ctx context.Context, names []string) ([]query.KeyState, error) {
	states, err := query.Repetitions(ctx, a.schedule, names)
	if err != nil {
		return nil, err
	}
	for i := range states {
		if err := states[i].Err; err != nil {
			return nil, fmt.Errorf("read what %s repeats by: %w", keys.Abbreviate(names[i]), err)
		}
	}
	return states, nil
}

// surplus adds the removal of what repeats in a namespace and is not in the file.
func (a *repeatApply) surplus(ctx context.Context, n keys.Namespace, wanted []wantedRepetition, todo *changes) error {
	known := map[string]bool{}
	for i := range wanted {
		known[wanted[i].key] = true
	}
	var names []string
	err := query.Repeating(ctx, a.schedule, n, func(found []keys.Key) bool {
		for _, key := range found {
			if name := key.String(); !known[name] {
				known[name] = true // it may come twice
				names = append(names, name)
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	slices.Sort(names)
	for some := range slices.Chunk(names, repetitionsAtOnce) {
		states, err := a.states(ctx, some)
		if err != nil {
			return err
		}
		for i, state := range states {
			if r := state.Repetition; r != nil {
				fields := []fieldChange{{"repeat", "", r.Text}}
				todo.list = append(todo.list, repetitionChange{kind: toRemove, key: some[i], fields: fields})
			}
		}
	}
	return nil
}

// carryOut prints what changes, changes it, and prints what came of it.
func (a *repeatApply) carryOut(ctx context.Context, todo *changes) error {
	out := a.cmd.OutOrStdout()
	_, printErr := io.WriteString(out, todo.diff())
	if a.dryRun {
		_, err := fmt.Fprintf(out, "%d to add, %d to change, %d to remove, %s\n", todo.count(toAdd), todo.count(toChange), todo.count(toRemove), todo.rest())
		return err
	}
	err := a.set(ctx, todo)
	if err == nil {
		err = a.remove(ctx, todo)
	}
	said := fmt.Sprintf("%d added, %d changed, %d removed, %s", a.done.added, a.done.changed, a.done.removed, todo.rest())
	if a.done.refused > 0 {
		said += fmt.Sprintf(", %d refused", a.done.refused)
	}
	if _, err := fmt.Fprintln(out, said); err != nil {
		printErr = err
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return errors.New("interrupted: apply the file again for the rest")
	case err != nil:
		return fmt.Errorf("%w\nWhat follows was not changed: apply the file again", err)
	case a.done.refused > 0:
		return exitCode(exitFailed)
	}
	return printErr
}

// set sets what is to be added and changed. It goes on after what Redis refuses.
func (a *repeatApply) set(ctx context.Context, todo *changes) error {
	for i := range todo.list {
		c := &todo.list[i]
		if c.kind != toAdd && c.kind != toChange {
			continue
		}
		_, err := a.timers.Repeat(ctx, c.key, c.wanted.payload, c.wanted.by, c.options()...)
		switch {
		case errors.Is(err, client.ErrInvalid):
			a.done.refused++
			fmt.Fprintf(a.cmd.ErrOrStderr(), "timerd: %s: line %d: %v\n", a.file, c.wanted.line, err)
		case err != nil:
			return err
		case c.kind == toAdd:
			a.done.added++
		default:
			a.done.changed++
		}
	}
	return nil
}

// remove cancels what is to be removed.
func (a *repeatApply) remove(ctx context.Context, todo *changes) error {
	var names, late []string
	for i := range todo.list {
		if todo.list[i].kind == toRemove {
			names = append(names, todo.list[i].key)
		}
	}
	for some := range slices.Chunk(names, repetitionsAtOnce) {
		if err := ctx.Err(); err != nil {
			return err
		}
		results, err := a.timers.CancelMany(context.WithoutCancel(ctx), some)
		for i, r := range results {
			if r.Err == nil {
				a.done.removed++
			}
			if r.Outcome == client.Fired {
				late = append(late, keys.EncodeText(some[i]))
			}
		}
		if err != nil {
			return err
		}
	}
	if len(late) > 0 {
		fmt.Fprintf(a.cmd.ErrOrStderr(), "timerd: removed while an occurrence was on its way, which may still arrive: %s\n", strings.Join(late, ", "))
	}
	return nil
}
