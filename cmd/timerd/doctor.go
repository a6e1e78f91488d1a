package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/doctor"
)

// doctorTimeout bounds all checks together.
const doctorTimeout = 30 * time.Second

func newDoctor() *cobra.Command {
	var asJSON, adopt bool
	var key string
	cmd := &cobra.Command{
		Use:        "doctor",
		SuggestFor: []string{"check"},
		Short:      "Check the servers and print what to fix",
		Long: `Check the configuration, Redis and NATS, and print what to fix. Each line has a result; the worst
ones come last:

  ok    as it should be
  warn  timerd works, but keeps less than it could
  fail  timerd does not start, or does not keep its guarantees

The exit code is 0 only without fail. Nothing is changed. Run it with the environment of timerd
itself.

With --key, nothing is checked: it prints the retry schedule of that timer under TIMERD_RETRY.

With --adopt-streams, nothing is checked either: the streams become those of this Redis. Use it if
they belong to an installation that is gone, as after Redis was replaced. It refuses while a timerd
of that installation runs. The retry requests that wait in the streams are then carried out here.`,
		Example: `  timerd doctor
  timerd doctor --json
  TIMERD_RETRY='app1:trans=wechatpay' timerd doctor --key app1:trans:notice:1`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if adopt && (asJSON || cmd.Flags().Changed("key")) {
				return usagef(cmd, "--adopt-streams goes with no other flag")
			}
			if cmd.Flags().Changed("key") {
				return explainKey(cmd, key, asJSON)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), doctorTimeout)
			defer cancel()
			if adopt {
				return doctor.AdoptStreams(ctx, cmd.OutOrStdout())
			}
			return checkServers(ctx, cmd, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a line of JSON for each finding, or for each attempt")
	cmd.Flags().BoolVar(&adopt, "adopt-streams", false, "take over the streams of an installation that is gone")
	cmd.Flags().StringVar(&key, "key", "", "print the retry schedule of a timer: app:module:type:id")
	return cmd
}

// checkServers prints the findings. Its error is the exit code.
func checkServers(ctx context.Context, cmd *cobra.Command, asJSON bool) error {
	findings, away, valid := doctor.CheckAll(ctx)
	show := printFindings
	if asJSON {
		show = writeLines[diag.Findings]
	}
	if err := show(cmd.OutOrStdout(), findings); err != nil {
		return err
	}
	for _, master := range away {
		fmt.Fprintf(cmd.ErrOrStderr(), "timerd: %v\n", master)
	}
	for _, f := range findings {
		if f.Check == diag.CheckUnattended {
			fmt.Fprintf(cmd.ErrOrStderr(), "timerd: warning: %s\n", f.Text)
		}
	}
	switch {
	case !valid:
		return exitCode(exitUsage)
	case findings.Failed():
		return exitCode(exitFailed)
	}
	return nil
}

// printFindings prints the findings, worst last: on a terminal the last lines are read first.
func printFindings(w io.Writer, findings diag.Findings) error {
	screen := screenOf(w)
	count := map[diag.Level]int{}
	for _, kind := range []struct {
		level diag.Level
		tone  tone
	}{{diag.OK, toneGood}, {diag.Warn, toneOdd}, {diag.Fail, toneBad}} {
		for _, f := range findings {
			if f.Level != kind.level {
				continue
			}
			count[f.Level]++
			level := screen.paint(fmt.Sprintf("%-4s", f.Level), kind.tone)
			if _, err := fmt.Fprintf(w, "%s  %-16s  %s\n", level, f.Check, f.Text); err != nil {
				return err
			}
			if f.Fix != "" {
				fmt.Fprintf(w, "      %-16s  fix: %s\n", "", f.Fix)
			}
		}
	}
	_, err := fmt.Fprintf(w, "\n%d ok, %d warn, %d fail\n", count[diag.OK], count[diag.Warn], count[diag.Fail])
	return err
}
