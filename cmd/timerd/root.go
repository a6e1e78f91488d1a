package main

import (
	"github.com/spf13/cobra"
)

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "timerd",
		Short: "Timers in Redis, fired as NATS events",
		Long: `timerd fires Redis keys app:module:type:id with a TTL as NATS JetStream events, on time and at
least once. timerd serve runs the service; so does timerd without a command, if its output is not a
terminal. It is configured by the environment: timerd help config names every variable.`,
		Example: `  timerd dev
  TIMERD_NAMESPACES=shop TIMERD_REDIS_URL=redis://127.0.0.1:6379/0 timerd serve
  timerd set shop:order:timeout:42 30m '{"order":42}'`,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, args []string) error {
			if screenOf(cmd.OutOrStdout()).isTerminal {
				return cmd.Help()
			}
			return runServe(cmd, args)
		},
		Version: versionText(),
		// run prints errors: it knows the exit codes.
		SilenceErrors: true,
		SilenceUsage:  true,

		SuggestionsMinimumDistance: 2,
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.SetUsageTemplate(usageTemplate)
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp) // no argument is a file
	for _, group := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Run it", []*cobra.Command{newServe(), newDev(), newAdvance(), newConsole()}},
		{"Timers", []*cobra.Command{newSet(), newGet(), newLs(), newCancel(), newFire(), newMove(), newRepeat(),
			newExport()}},
		{"Operate", []*cobra.Command{newStatus(), newDoctor(), newHealth(), newAccount(), newAudit(), newReconcile(),
			newHold(), newResume(), newHolds(), newDead()}},
		{"Look ahead and back", []*cobra.Command{newForecast(), newWatch()}},
		{"Hand events on", []*cobra.Command{newConsume(), newDeliver(), newDeliveries()}},
	} {
		root.AddGroup(&cobra.Group{ID: group.title, Title: group.title + ":"})
		for _, command := range group.commands {
			command.GroupID = group.title
			root.AddCommand(command)
		}
	}
	root.AddCommand(newSchema(), newVersion(), newCompletion(), newMan(), newConfigTopic())
	return root
}
