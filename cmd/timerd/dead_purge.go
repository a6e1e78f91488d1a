package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/config"
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
			if olderThan > 0 {
				chosen.Before = time.Now().Add(-time.Duration(olderThan))
			}
			return withDeadLetters(cmd, chosen, config.SectionNATS, func(all *admin.Letters, j *admin.Journal,
				_ config.Config) error {
				return purge(cmd, all, j, yes)
			})
		},
	}
	selectionFlags(cmd, &chosen, &yes)
	cmd.Flags().Var(&olderThan, "older-than", "only letters stored at least this long ago, such as 12h or 30d")
	return cmd
}

func purge(cmd *cobra.Command, all *admin.Letters, journal *admin.Journal, yes bool) error {
	ctx := cmd.Context()
	found, err := all.Find(ctx, func(admin.Letter, string) error { return nil })
	if err != nil {
		return err
	}
	if len(found.All) > 0 && !yes {
		if err := confirm(cmd, fmt.Sprintf("%s to delete for good. Go on?",
			counted(int64(len(found.All)), "dead letter"))); err != nil {
			return err
		}
	}
	how := progressOf(cmd)
	gone := 0
	err = all.Purge(ctx, found.All, func(purged int) {
		gone = purged
		how.show("%d of %d purged", purged, len(found.All))
	})
	how.clear()
	if gone > 0 {
		journal.Note(ctx, all.Entry(event.EntryPurge, gone))
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d purged\n", len(found.All))
	return err
}
