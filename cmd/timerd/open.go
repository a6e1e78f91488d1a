package main

import (
	"fmt"
	"log/slog"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
)

// commandConfig reads the sections of the configuration that a client command
// needs, and passes its warnings on.
func commandConfig(cmd *cobra.Command, sections section) (config, *slog.Logger, error) {
	c, err := readConfig(sections | sectionLog)
	return c, announce(cmd, c), err
}

// announce passes the warnings of a configuration on and returns its logger.
func announce(cmd *cobra.Command, c config) *slog.Logger {
	for _, warning := range c.Warnings {
		fmt.Fprintf(cmd.ErrOrStderr(), "timerd: warning: %s\n", warning)
	}
	return newLogger(c.Log, cmd.ErrOrStderr())
}

// openRedis connects a client command to Redis. Unlike the service it does not
// wait for a server that is away.
func openRedis(cmd *cobra.Command, c config, log *slog.Logger) (redis.UniversalClient, error) {
	return connector{log: log}.redis(cmd.Context(), c.Redis)
}

// withJetStream reads the sections of the configuration, connects a client command
// to NATS and calls f; to an embedded server it connects where that listens.
func withJetStream(cmd *cobra.Command, sections section, f func(js jetstream.JetStream, c config, log *slog.Logger) error) error {
	c, log, err := commandConfig(cmd, sections)
	if err != nil {
		return err
	}
	n := c.NATS
	if n.Embedded {
		n = n.fromOutside()
	}
	nc, err := connector{log: log}.nats(cmd.Context(), n)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	return f(js, c, log)
}
