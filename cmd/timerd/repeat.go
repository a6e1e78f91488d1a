package main

import "github.com/spf13/cobra"

func newRepeat() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "repeat",
		Short: "Try when a repetition would be due",
		Args:  noSuchCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return usagef(cmd, "want next") },
	}
	cmd.AddCommand(newRepeatNext())
	return cmd
}
