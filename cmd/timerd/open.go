package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/schedule"
)

// commandConfig reads the sections of the configuration that a command needs, and passes its warnings on.
func commandConfig(cmd *cobra.Command, sections config.Section) (config.Config, *slog.Logger, error) {
	c, err := config.Read(sections | config.SectionLog)
	return c, announce(cmd, c), err
}

// announce passes the warnings of a configuration on and returns its logger.
func announce(cmd *cobra.Command, c config.Config) *slog.Logger {
	log := c.Log.NewLogger(cmd.ErrOrStderr())
	for _, warning := range c.Warnings {
		if c.Log.JSON {
			log.Warn("about the configuration", "err", warning)
		} else {
			fmt.Fprintf(cmd.ErrOrStderr(), "timerd: warning: %s\n", warning)
		}
	}
	return log
}

// openRedis connects a client command to Redis. Unlike the service it does not wait for a server that is away.
func openRedis(cmd *cobra.Command, c config.Config, log *slog.Logger) (redis.UniversalClient, error) {
	return connect.Connector{Logger: log}.Redis(cmd.Context(), c.Redis)
}

// withRedis calls f with a connection to Redis. What the function library refuses becomes a *usageError.
func withRedis(cmd *cobra.Command, f func(context.Context, redis.UniversalClient) error) error {
	c, log, err := commandConfig(cmd, config.SectionRedis)
	if err != nil {
		return err
	}
	rdb, err := openRedis(cmd, c, log)
	if err != nil {
		return err
	}
	err = f(cmd.Context(), rdb)
	if errors.Is(err, client.ErrInvalid) {
		err = &usageError{cmd.CommandPath(), err}
	}
	return errors.Join(err, rdb.Close())
}

// warnIfUnattended says on standard error if no timerd is alive that serves the schedule. Where that cannot be told, it is
// silent: the command itself has worked.
func warnIfUnattended(ctx context.Context, cmd *cobra.Command, rdb redis.UniversalClient) {
	members, err := schedule.New(rdb, schedule.DefaultMaxPayload).Members(ctx)
	if err != nil {
		return
	}
	if text := status.Unattended(members); text != "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "timerd: warning: %s\n", text)
	}
}

// withJetStream reads the sections of the configuration, connects a client command to NATS and calls f; to an embedded
// server it connects where that listens.
func withJetStream(cmd *cobra.Command, sections config.Section, f func(jetstream.JetStream, config.Config, *slog.Logger) error) error {
	c, log, err := commandConfig(cmd, sections)
	if err != nil {
		return err
	}
	js, err := connect.Connector{Logger: log}.JetStream(cmd.Context(), c.NATS.FromOutside())
	if err != nil {
		return err
	}
	defer js.Conn().Close()
	return f(js, c, log)
}
