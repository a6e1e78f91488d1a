package main

import (
	"context"
	"errors"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/service"
)

func newServe() *cobra.Command {
	return &cobra.Command{
		Use:        "serve",
		SuggestFor: []string{"run", "start", "daemon"},
		Short:      "Run timerd, configured by the environment",
		Long: `Run timerd until SIGTERM or SIGINT. It is configured by the environment: timerd help config names
every variable.`,
		Args: arguments(cobra.NoArgs),
		RunE: runServe,
	}
}

func runServe(cmd *cobra.Command, _ []string) error {
	c, log, err := commandConfig(cmd, config.SectionRedis|config.SectionNATS|config.SectionService)
	if err != nil {
		return err
	}
	useProcessors(c)
	err = service.Service{Config: c, Version: buildText(), Logger: log}.Run(cmd.Context())
	if cmd.Context().Err() != nil && errors.Is(err, context.Canceled) {
		return nil // asked to stop before the start
	}
	return err
}

// useProcessors limits Go to one processor, unless GOMAXPROCS is set. Redis has one for its commands too, and
// needs more time for a timer than timerd does. Handing each of many short pieces of work to another processor costs
// CPU time. The benchmark is
//
//	bin/bench run --profile quick --systems timerd,timerd-procs2 --rounds 3
//
// With two processors all processes together took 830 µs of CPU a firing instead of 630 at 500 firings a second, and
// 160 instead of 145 in a spike (medians, two cores that were busy with other work as well). In a cluster timerd must
// keep up with several Redis servers, so Go decides.
func useProcessors(c config.Config) {
	if !c.ProcessorsChosen && c.Redis.Mode != config.Cluster && !c.NATS.Embedded {
		runtime.GOMAXPROCS(1)
	}
}
