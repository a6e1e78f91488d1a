package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// newCompletion replaces cobra's own command, which reports faults differently from the other commands.
func newCompletion() *cobra.Command {
	shells := []struct {
		name  string
		write func(root *cobra.Command, w io.Writer) error
	}{
		{"bash", func(root *cobra.Command, w io.Writer) error { return root.GenBashCompletionV2(w, true) }},
		{"zsh", (*cobra.Command).GenZshCompletion},
		{"fish", func(root *cobra.Command, w io.Writer) error { return root.GenFishCompletion(w, true) }},
		{"powershell", (*cobra.Command).GenPowerShellCompletionWithDesc},
	}
	names := make([]string, len(shells))
	for i, s := range shells {
		names[i] = s.name
	}
	return &cobra.Command{
		Use:   "completion " + strings.Join(names, "|"),
		Short: "Print the completion script of a shell",
		Long: `Print the script with which a shell completes the commands and flags of timerd. Let the shell read
it at each start. The examples are for the current session.`,
		Example: `  source <(timerd completion bash)    # needs the package bash-completion
  source <(timerd completion zsh)     # after: autoload -U compinit; compinit
  timerd completion fish | source
  timerd completion powershell | Out-String | Invoke-Expression`,
		ValidArgs:             names,
		DisableFlagsInUseLine: true,
		Args:                  arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			at := slices.Index(names, args[0])
			if at < 0 {
				return usagef(cmd, "unknown shell %q: want %s", args[0], strings.Join(names, ", "))
			}
			if err := shells[at].write(cmd.Root(), cmd.OutOrStdout()); err != nil {
				return fmt.Errorf("write the script: %w", err)
			}
			return nil
		},
	}
}
