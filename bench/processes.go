package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/bench/internal/firing"
	"github.com/timerd-io/timerd/bench/internal/peer"
	"github.com/timerd-io/timerd/bench/internal/rig"
	"github.com/timerd-io/timerd/internal/embedded"
)

// newWorkerCommand is the command for the worker process of a measured system: this program again.
func newWorkerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "worker KIND ARG...",
		Short:  "be the worker process of a system, and report firings on stdout",
		Hidden: true,
		Args:   cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return peer.Worker(cmd.Context(), args[0], args[1:], firing.NewReporter(cmd.OutOrStdout()))
		},
	}
}

// newNATSCommand is the command that makes this program a nats-server, with all of nats-server's flags.
func newNATSCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "nats-server",
		Short:              "be a nats-server",
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if delay, slow := os.LookupEnv(rig.SyncDelayVariable); slow { //nolint:forbidigo // of a child
				d, err := time.ParseDuration(delay)
				if err == nil {
					err = rig.SlowDisk(d)
				}
				if err != nil {
					return err
				}
			}
			return embedded.Serve(cmd.Context(), args)
		},
	}
}
