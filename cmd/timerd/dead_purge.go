package main

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/deadletters"
)

func newDeadPurge() *cobra.Command {
	var chosen selection
	var yes bool
	var olderThan durationFlag
	cmd := &cobra.Command{
		Use:   "purge [NAMESPACE | --id ID | --seq N]",
		Short: "Delete dead letters for good",
		Long:  "Delete dead letters for good." + selectionHelp,
		Example: `  timerd dead purge --older-than 30d
  timerd dead purge shop:order --yes`,
		Args: arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			chosen.namespace = args
			if olderThan < 0 {
				return usagef(cmd, "--older-than=%v: want a positive duration", &olderThan)
			}
			return withDeadLetters(cmd, chosen, config.SectionNATS, func(all *deadletters.Letters, _ config.Config, _ *slog.Logger) error {
				return purge(cmd, all, time.Duration(olderThan), yes)
			})
		},
	}
	selectionFlags(cmd, &chosen, &yes)
	cmd.Flags().Var(&olderThan, "older-than", "only letters that were stored so long ago, such as 12h or 30d")
	return cmd
}

func purge(cmd *cobra.Command, all *deadletters.Letters, olderThan time.Duration, yes bool) error {
	ctx := cmd.Context()
	var doomed []uint64
	young := time.Now().Add(-olderThan)
	err := all.Each(ctx, func(l deadletters.Letter) (bool, error) {
		if olderThan > 0 && l.Stored.After(young) {
			return false, nil // letters come in the order in which they were stored
		}
		doomed = append(doomed, l.Seq)
		return true, nil
	})
	if err != nil {
		return err
	}
	if len(doomed) > 0 {
		if !yes {
			if err := confirm(cmd, fmt.Sprintf("%s to delete for good. Go on?", countLetters(len(doomed)))); err != nil {
				return err
			}
		}
		if err := all.Purge(ctx, doomed); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d purged\n", len(doomed))
	return err
}
