package main

import (
	"strings"

	"github.com/spf13/cobra"
)

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "timerd",
		Short: "Timers in Redis, fired as NATS events",
		Long: `timerd fires Redis keys app:module:type:id with a TTL as NATS JetStream events, on time and at
least once. Without a command it runs the service, as timerd serve does. It is configured by the
environment: timerd help config names every variable.`,
		Example: `  timerd dev
  TIMERD_NAMESPACES=shop TIMERD_REDIS_URL=redis://127.0.0.1:6379/0 timerd serve
  timerd set shop:order:timeout:42 30m '{"order":42}'`,
		Args: noSuchCommand,
		RunE: runServe,
		// Errors are told by run, which knows the exit codes.
		SilenceErrors: true,
		SilenceUsage:  true,

		SuggestionsMinimumDistance: 2,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{cmd.CommandPath(), err}
	})
	root.SetUsageFunc(usage)
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp) // no argument is a file
	root.AddCommand(newServe(), newDev(), newSet(), newGet(), newCancel(), newLs(), newForecast(), newRepeat(), newWatch(), newDead(), newStatus(), newHold(), newResume(), newHolds(), newDoctor(),
		newDeliver(), newDeliveries(), newHealth(), newVersion(), newCompletion(), newConfigTopic())
	return root
}

// noSuchCommand is the argument check of a command that only holds others, or that takes no arguments besides.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	near := ""
	if names := cmd.SuggestionsFor(args[0]); len(names) > 0 {
		near = "; did you mean " + strings.Join(names, " or ") + "?"
	}
	return usagef(cmd, "unknown command %q%s", args[0], near)
}
