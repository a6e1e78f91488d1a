// Command bench measures timerd and its peers, all as processes on this machine, and makes tables and plots of the
// results. `make bench` in the parent directory runs it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1) //nolint:forbidigo // the program's one exit
	}
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "bench",
		Short:         "measure timerd and its peers",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(newRunCommand(), newReportCommand(), newListCommand(), newWorkerCommand(), newNATSCommand())
	return root
}
