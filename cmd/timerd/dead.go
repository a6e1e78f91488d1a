package main

import (
	"github.com/spf13/cobra"
)

func newDead() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dead",
		Short: "List, show, replay or purge dead letters",
		Long: `A dead letter is a timer that will not fire any more by itself, for example because its attempts are
used up or a consumer has given up on it. Retry requests that cannot be carried out become dead
letters too. They stay in their stream until they are replayed or purged.`,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return usagef(cmd, "want ls, show, replay or purge") },
	}
	cmd.AddCommand(newDeadLs(), newDeadShow(), newDeadReplay(), newDeadPurge())
	return cmd
}
