package main

import (
	"github.com/spf13/cobra"
)

func newDead() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dead",
		Short: "List, show, replay or purge dead letters",
		Long: `Dead letters are events whose attempts are used up, or on which a consumer has given up, and retry
requests that make no sense. They stay in their stream until they are replayed or purged.`,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return usagef(cmd, "want ls, show, replay or purge") },
	}
	cmd.AddCommand(newDeadLs(), newDeadShow(), newDeadReplay(), newDeadPurge())
	return cmd
}
