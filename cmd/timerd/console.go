package main

import (
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/service"
)

func newConsole() *cobra.Command {
	return &cobra.Command{
		Use:   "console",
		Short: "Run only the console, the web page, without serving timers",
		Long: `Run the console until SIGTERM or SIGINT: the web page that timerd serve has at TIMERD_CONSOLE_ADDR,
in a process of its own, so that it works while no timerd runs. By default it is at 127.0.0.1:8090.
It also starts while Redis or NATS is away, and says so. It reads the variables TIMERD_REDIS_…,
TIMERD_NATS_…, TIMERD_CONSOLE_…, TIMERD_RETRY and TIMERD_LATE.`,
		Example: `  timerd console
  TIMERD_CONSOLE_ACTIONS=on TIMERD_REDIS_URL=redis://127.0.0.1:6379/0 timerd console`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, log, err := commandConfig(cmd, config.SectionRedis|config.SectionNATS|config.SectionConsole)
			if err != nil {
				return err
			}
			return service.ConsoleAlone{Config: c, Logger: log}.Run(cmd.Context())
		},
	}
}
