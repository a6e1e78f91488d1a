package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/yamlfile"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

func newRepeatApply() *cobra.Command {
	var a repeatApply
	cmd := &cobra.Command{
		Use:   "apply -f FILE [--prune NAMESPACE] [--dry-run]",
		Short: "Set the repetitions of a file",
		Long: `Set the repetitions of a file. Only differences are changed. The command first prints the
changes: + is added, ~ is changed, - is removed. --dry-run ends there. If the file has faults, each
is printed with its line, and nothing is changed.

  repeat:
    - key: shop:report:daily:1       # needed
      cron: '0 9 * * 1-5'            # or every: 5m
      tz: Europe/Berlin              # of cron; UTC by default
      payload: {to: sales}           # a text as it is, anything else as JSON
      from: 2026-12-01T00:00:00Z     # no occurrence is due before
      until: 2027-11-30T00:00:00Z    # the last possible due time
      times: 100                     # firings in all
      catchup: 1d                    # also fire occurrences missed in the last day
      late: 1h                       # limit on lateness
      drop_late: true                # later: drop it, without a dead letter
      unless: shop:report:off:1      # left out if this key exists then; if: only if it does

A changed repetition counts from 1 again; an unchanged interval keeps its due times. Timers that are
not in the file stay, unless --prune NAMESPACE is given: then repeating timers of the namespace that
are not in the file are cancelled, with their retries.

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
	cmd.Flags().StringVar(&a.prune, "prune", "", "cancel repeating timers of a `NAMESPACE` that are not in the file")
	cmd.Flags().BoolVar(&a.dryRun, "dry-run", false, "only show what would change")
	return cmd
}

// repeatApply is a call of timerd repeat apply.
type repeatApply struct {
	cmd         *cobra.Command
	file, prune string
	dryRun      bool
}

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
	wanted, faults := admin.ParseRepetitions(text)
	if len(faults) > 0 {
		return a.refuse(faults)
	}
	journal := newJournal(a.cmd)
	defer journal.close()
	return withRedis(a.cmd, func(ctx context.Context, rdb redis.UniversalClient) error {
		repeats := admin.NewRepeats(schedule.Open(ctx, rdb, schedule.DefaultMaxPayload))
		plan, faults, err := repeats.Plan(ctx, wanted, pruned)
		switch {
		case err != nil:
			return err
		case len(faults) > 0:
			return a.refuse(faults)
		}
		warnIfUnattended(ctx, a.cmd, rdb)
		return a.carryOut(ctx, repeats, plan, journal)
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
	sayReading(a.cmd, "repetitions, in YAML,")
	in := openStdin(a.cmd)
	defer func() { _ = in.Close() }() // never fails
	text, err := io.ReadAll(in)
	if err != nil {
		err = fmt.Errorf("read standard input: %w; nothing was changed", err)
	}
	return text, err
}

// refuse prints the faults of the file, and ends the command.
func (a *repeatApply) refuse(faults yamlfile.Faults) error {
	for _, f := range faults {
		fmt.Fprintf(a.cmd.ErrOrStderr(), "timerd: %s: %s\n", a.file, f)
	}
	fmt.Fprintln(a.cmd.ErrOrStderr(), "timerd: nothing was changed")
	return exitCode(exitUsage)
}

// carryOut prints the changes, makes them, and prints the results.
func (a *repeatApply) carryOut(ctx context.Context, repeats *admin.Repeats, plan *admin.Plan, journal *journal) error {
	out, errs := a.cmd.OutOrStdout(), a.cmd.ErrOrStderr()
	_, printErr := io.WriteString(out, planText(plan))
	rest := fmt.Sprintf("%d unchanged", plan.Count(admin.ToLeave))
	if n := plan.Count(admin.ToForget); n > 0 {
		rest += fmt.Sprintf(", %d over", n)
	}
	if a.dryRun {
		_, err := fmt.Fprintf(out, "%d to add, %d to change, %d to remove, %s\n", plan.Count(admin.ToAdd),
			plan.Count(admin.ToChange), plan.Count(admin.ToRemove), rest)
		return err
	}
	refused := 0
	done, err := repeats.Apply(ctx, plan, func(c *admin.Change, err error) {
		refused++
		fmt.Fprintf(errs, "timerd: %s: line %d: %v\n", a.file, c.Wanted.Line, err)
	})
	if len(done.Late) > 0 && err == nil {
		for i, key := range done.Late {
			done.Late[i] = keys.EncodeText(key)
		}
		fmt.Fprintf(errs, "timerd: removed while an occurrence was on its way, which may still arrive: %s\n",
			strings.Join(done.Late, ", "))
	}
	said := fmt.Sprintf("%d added, %d changed, %d removed, %s", done.Added, done.Changed, done.Removed, rest)
	if n := done.Added + done.Changed + done.Removed; n > 0 {
		journal.Note(ctx, event.Entry{Kind: event.EntryRepeat, Count: int64(n), Detail: said})
	}
	if refused > 0 {
		said += fmt.Sprintf(", %d refused", refused)
	}
	if _, err := fmt.Fprintln(out, said); err != nil {
		printErr = err
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return errors.New("interrupted: apply the file again for the rest")
	case err != nil:
		return fmt.Errorf("%w\nThe rest was not changed: apply the file again", err)
	case refused > 0:
		return exitCode(exitFailed)
	}
	return printErr
}
