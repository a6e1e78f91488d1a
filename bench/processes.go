package main

import (
	"flag"
	"fmt"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/bench/internal/firing"
	"github.com/timerd-io/timerd/bench/internal/peer"
)

// newWorkerCommand is the other side of a system under measurement: this program again, as a process of its own.
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

// newNATSCommand makes this program a nats-server, with all of its flags.
func newNATSCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "nats-server",
		Short:              "be a nats-server",
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			flags := flag.NewFlagSet("nats-server", flag.ContinueOnError)
			opts, err := server.ConfigureOptions(flags, args, server.PrintServerAndExit, flags.Usage, server.PrintTLSHelpAndDie)
			if err != nil {
				return err
			}
			opts.NoSigs = true
			s, err := server.NewServer(opts)
			if err != nil {
				return fmt.Errorf("nats-server: %w", err)
			}
			s.ConfigureLogger()
			s.Start()
			<-cmd.Context().Done()
			s.Shutdown()
			s.WaitForShutdown()
			return nil
		},
	}
}
