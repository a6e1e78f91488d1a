package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
)

// attemptView is one attempt of a timer as --json shows it.
type attemptView struct {
	Attempt int     `json:"attempt"`
	After   float64 `json:"after"` // seconds since the attempt before, or since the due time
	AtMost  float64 `json:"atmost"`
	Total   float64 `json:"total"` // seconds since the first attempt, without jitter
}

// explainKey prints the retry schedule of a timer under TIMERD_RETRY. It needs no server.
func explainKey(cmd *cobra.Command, name string, asJSON bool) error {
	key, err := keys.Parse(name)
	if err != nil {
		return usagef(cmd, "--key=%s: %w", name, err)
	}
	c, err := config.Read(config.SectionRetry)
	if err != nil {
		return err
	}
	policies := c.Service.Retry
	policy := policies.For(key)
	attempts := []attemptView{{Attempt: 1}}
	total := time.Duration(0)
	for i, delay := range policy.Delays() {
		total += delay
		longest := time.Duration(float64(delay) * (1 + policy.Jitter()/100)).Round(time.Millisecond)
		attempts = append(attempts, attemptView{i + 2, delay.Seconds(), longest.Seconds(), total.Seconds()})
	}
	if asJSON {
		return writeLines(cmd.OutOrStdout(), attempts)
	}
	return printAttempts(cmd.OutOrStdout(), key, policies, attempts)
}

func printAttempts(w io.Writer, key keys.Key, policies policy.Rules[policy.Retry], attempts []attemptView) error {
	entry := ""
	for _, p := range policies {
		if p.Namespace.Match(key) {
			entry = p.Namespace.String() + "=" + p.Is.String()
			break
		}
	}
	fmt.Fprintf(w, "%s follows %s\n\n", keys.EncodeText(key.String()), entry)
	table := tableFor(w, true, column{title: "ATTEMPT"}, column{title: "AFTER THE FAILURE"},
		column{title: "SINCE THE FIRST"})
	for _, a := range attempts {
		after := "when due"
		if a.Attempt > 1 {
			after = seconds(a.After)
			if a.AtMost > a.After {
				after += " to " + seconds(a.AtMost)
			}
		}
		table.row(a.Attempt, after, seconds(a.Total))
	}
	if err := table.flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nWhen attempt %d fails too, the event goes to the dead letters.\n", len(attempts))
	return err
}

// seconds formats a number of seconds as a duration.
func seconds(s float64) string {
	return diag.Duration(time.Duration(s * float64(time.Second)).Round(time.Millisecond))
}
