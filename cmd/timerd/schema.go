package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/docs/schemas"
)

func newSchema() *cobra.Command {
	return &cobra.Command{
		Use:   "schema NAME",
		Short: "Print a JSON Schema, or the AsyncAPI document",
		Long: `Print the JSON Schema (2020-12) of a message: event, dead (a dead letter), delivery (a call of
timerd deliver), history (an entry of the history), request (the headers of a retry request), answer
(a line of a command of timerd consume), timer (a line of timerd export and timerd set --from); or
asyncapi, the AsyncAPI document of all subjects.`,
		Example:   "  timerd schema event\n  timerd schema asyncapi >timerd.asyncapi.yaml",
		ValidArgs: schemas.Names(),
		Args:      arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, ok := schemas.Text(args[0])
			if !ok {
				return usagef(cmd, "no schema %q: want one of %s", args[0], strings.Join(schemas.Names(), ", "))
			}
			_, err := fmt.Fprint(cmd.OutOrStdout(), text)
			return err
		},
	}
}
