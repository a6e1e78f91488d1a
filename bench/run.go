package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/bench/internal/load"
	"github.com/timerd-io/timerd/bench/internal/peer"
	"github.com/timerd-io/timerd/bench/internal/report"
	"github.com/timerd-io/timerd/bench/internal/result"
)

func newRunCommand() *cobra.Command {
	var (
		profile  string
		systems  []string
		only     []string
		pending  []int
		foreign  []int
		rounds   int
		grace    time.Duration
		millions int
		rate     int
		atOnce   int
		waiting  int
		out      string
		timerd   string
		tables   bool
	)
	cmd := &cobra.Command{
		Use:   "run",
		Short: "measure, and write the results to a file",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := profileNamed(profile)
			if err != nil {
				return err
			}
			if rounds > 0 {
				p.rounds = rounds
			}
			if millions > 0 {
				p.scale.Millions = millions
			}
			for _, given := range []struct {
				n  int
				of *int
			}{{rate, &p.scale.Rate}, {atOnce, &p.scale.AtOnce}, {waiting, &p.scale.Waiting}} {
				if given.n > 0 {
					*given.of = given.n
				}
			}
			if grace > 0 {
				p.grace = grace
			}
			if err := p.restrict(only, pending, foreign); err != nil {
				return err
			}
			specs, err := choose(systems, p.systems)
			if err != nil {
				return err
			}
			run, err := measure(cmd.Context(), p, specs, timerd, out, cmd.OutOrStdout())
			if tables && run != nil {
				err = errors.Join(err, report.Tables(cmd.OutOrStdout(), run))
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&profile, "profile", "full", "full, or quick: less of everything, in under a minute")
	f.StringSliceVar(&systems, "systems", nil, "only these systems, see bench list; a trailing * stands for anything")
	f.StringSliceVar(&only, "workloads", nil, "only these workloads, see bench list")
	f.IntSliceVar(&pending, "pending", nil,
		"only with these numbers of other pending timers, such as 0,5000000 (default 0, 100 k, 1 M; quick 0)")
	f.IntSliceVar(&foreign, "foreign", nil,
		"only with these numbers of foreign keys in Redis (default 0, 1 M; quick 0)")
	f.IntVar(&millions, "millions", 0, "how many timers the workload millions has pending (default 20 M, quick 20 k)")
	f.IntVar(&rate, "rate", 0, "firings per second in the workload shapes (default 3000, quick 300)")
	f.IntVar(&atOnce, "at-once", 0, "timers due at one instant in it (default 60 k, quick 2 k)")
	f.IntVar(&waiting, "waiting", 0, "timers pending in it while it is idle (default 100 k, quick 5 k)")
	f.IntVar(&rounds, "rounds", 0, "how often each is measured (default 3, quick 1)")
	f.DurationVar(&grace, "grace", 0,
		"how long after the last due time a firing counts as undelivered (default 40s, quick 5s)")
	f.StringVar(&out, "out", "results.json", "the file of the results, written after each measurement")
	f.StringVar(&timerd, "timerd", "bin/timerd", "the timerd to measure")
	f.BoolVar(&tables, "tables", false, "print the tables when done")
	return cmd
}

func newListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "list systems and workloads, and missing programs",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := cmd.OutOrStdout()
			fmt.Fprintln(w, "systems:")
			for _, s := range peer.Specs() {
				fmt.Fprintf(w, "  %-16s %s (%s)\n", s.Name, s.Title, s.Settings)
				if err := s.Missing(); err != nil {
					fmt.Fprintf(w, "  %-16s MISSING: %v\n", "", err)
				}
			}
			fmt.Fprintln(w, "workloads:\n  "+strings.Join(workloads(), "\n  "))
			return nil
		},
	}
}

// choose returns the named systems. Without names it returns the standard ones.
func choose(names, standard []string) ([]peer.Spec, error) {
	if len(names) == 0 {
		names = standard
	}
	all := peer.Specs()
	var chosen []peer.Spec
	for _, name := range names {
		prefix, wild := strings.CutSuffix(name, "*")
		found := false
		for _, s := range all {
			if s.Name == name || wild && strings.HasPrefix(s.Name, prefix) {
				found = true
				if !slices.ContainsFunc(chosen, func(c peer.Spec) bool { return c.Name == s.Name }) {
					chosen = append(chosen, s)
				}
			}
		}
		if !found {
			return nil, fmt.Errorf("no system %q; to list the systems, run: bench list", name)
		}
	}
	return chosen, nil
}

// measure carries out a profile. If a step fails, measure notes that and goes on; then its error says that some steps
// failed.
func measure(ctx context.Context, p profile, specs []peer.Spec, timerd, out string,
	log io.Writer) (*result.Run, error) {
	run := &result.Run{Started: time.Now().UTC(), Profile: p.name, Grace: p.grace.Seconds()}
	var err error
	if run.Machine, err = thisMachine(); err != nil {
		return nil, err
	}
	specs = slices.DeleteFunc(specs, func(s peer.Spec) bool {
		err := s.Missing()
		if err != nil {
			run.Skipped = append(run.Skipped, result.Skipped{What: s.Title, Reason: err.Error()})
			fmt.Fprintf(log, "NOT MEASURED: %s: %v\n", s.Title, err)
		}
		return err != nil
	})
	for _, s := range specs {
		run.Systems = append(run.Systems, result.System{Name: s.Name, Title: s.Title, Settings: s.Settings})
	}
	if run.Versions, err = versions(ctx, timerd); err != nil {
		return nil, err
	}
	fmt.Fprintf(log, "%s, %d cores, %.0f GiB, %s, load %.2f\n", run.Machine.CPU, run.Machine.Cores,
		run.Machine.MemoryGiB, run.Machine.Kernel, run.Machine.Load)
	for _, name := range sortedKeys(run.Versions) {
		fmt.Fprintf(log, "  %s %s\n", name, run.Versions[name])
	}
	b := &load.Bench{Timerd: timerd, Grace: p.grace, Scale: p.scale, Log: log}
	save := func(m result.Measurement) error {
		run.Measurements = append(run.Measurements, m)
		run.Finished = time.Now().UTC()
		return run.Save(out)
	}
	for _, name := range p.others {
		if len(other(name, specs, 1)) == 0 {
			run.Skipped = append(run.Skipped, result.Skipped{What: name, Reason: "it measures none of the systems"})
			fmt.Fprintf(log, "NOT MEASURED: %s: it measures none of the systems\n", name)
		}
	}
	steps := p.steps(specs)
	if len(steps) == 0 {
		return run, errors.New("nothing to measure, see above")
	}
	for i, s := range steps {
		fmt.Fprintf(log, "%s step %d of %d: %s\n", time.Now().Format("15:04:05"), i+1, len(steps), s.name)
		if err := s.run(ctx, b, save); err != nil {
			if ctx.Err() != nil {
				return run, ctx.Err()
			}
			fmt.Fprintf(log, "FAILED: %s: %v\n", s.name, err)
			run.Failed = append(run.Failed, result.Skipped{What: s.name, Reason: err.Error()})
		}
	}
	run.Finished = time.Now().UTC()
	if err := run.Save(out); err != nil {
		return run, err
	}
	if n := len(run.Failed); n > 0 {
		return run, fmt.Errorf("%d of %d steps failed, see above; the others are in %s", n, len(steps), out)
	}
	return run, nil
}
