package main

import (
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/keys"
)

func newDeadShow() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show SEQ",
		Short: "Show a dead letter in full",
		Long: `Show a dead letter in full: its event, and the reason. SEQ is its number in the stream, as timerd
dead ls shows it.`,
		Example: `  timerd dead show 17
  timerd dead show 17 --json`,
		Args: arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			seq, err := strconv.ParseUint(args[0], 10, 64)
			if err != nil || seq == 0 {
				return usagef(cmd, "SEQ %q: want the number of a dead letter; timerd dead ls shows them", args[0])
			}
			chosen := selection{LetterSelection: admin.LetterSelection{Seqs: []uint64{seq}}}
			return withDeadLetters(cmd, chosen, config.SectionNATS, func(one *admin.Letters, _ *admin.Journal,
				_ config.Config) error {
				return one.Each(cmd.Context(), func(l admin.Letter) (bool, error) {
					if asJSON {
						return false, printLetterJSON(cmd.OutOrStdout(), l)
					}
					return false, printLetter(cmd.OutOrStdout(), l)
				})
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the event itself, in a line of JSON")
	return cmd
}

// printLetter prints a whole letter, a line for each field.
func printLetter(w io.Writer, l admin.Letter) error {
	e := l.Event
	lines := [][2]string{
		{"seq", strconv.FormatUint(l.Seq, 10)},
		{"stored", l.Stored.UTC().Format(timeLayout)},
		{"subject", l.Subject},
		{"id", showText(l.ID(), math.MaxInt)},
	}
	if l.Fault != "" {
		lines = append(lines, [][2]string{{"fault", "not an event: " + showText(l.Fault, math.MaxInt)},
			{"content", showPayload(l.Data, "", math.MaxInt)}}...)
	} else {
		lines = append(lines, [][2]string{
			{"key", keys.EncodeText(e.Key.String())},
			{"due", e.Due.UTC().Format(timeLayout)},
			{"attempt", showAttempt(e.Attempt, e.MaxAttempts)},
			{"reason", showText(e.DeadReason, math.MaxInt)},
			{"last error", showText(e.LastError, math.MaxInt)},
			{"payload", showPayload(e.Data, e.Status, math.MaxInt)},
		}...)
	}
	for _, line := range lines {
		if line[1] == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "%-10s  %s\n", line[0], line[1]); err != nil {
			return err
		}
	}
	return nil
}
