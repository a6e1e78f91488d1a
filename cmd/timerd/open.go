package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// commandConfig reads a command's sections of the configuration, and logs its warnings.
func commandConfig(cmd *cobra.Command, sections config.Section) (config.Config, *slog.Logger, error) {
	c, err := config.Read(sections | config.SectionLog)
	return c, announce(cmd, c), err
}

// announce logs the warnings of a configuration and returns its logger.
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
func openRedis(cmd *cobra.Command, c config.Config) (redis.UniversalClient, error) {
	rdb, err := connect.Connector{Logger: c.Log.NewLogger(cmd.ErrOrStderr())}.Redis(cmd.Context(), c.Redis)
	if err != nil && cmd.Context().Err() == nil {
		err = diag.WithFix(err, connect.RedisFix(err))
	}
	return rdb, err
}

// withRedis calls f with a connection to Redis. A refusal by the function library becomes a *usageError.
func withRedis(cmd *cobra.Command, f func(context.Context, redis.UniversalClient) error) error {
	c, _, err := commandConfig(cmd, config.SectionRedis)
	if err != nil {
		return err
	}
	rdb, err := openRedis(cmd, c)
	if err != nil {
		return err
	}
	err = f(cmd.Context(), rdb)
	if errors.Is(err, client.ErrInvalid) {
		err = &usageError{cmd.CommandPath(), err}
	}
	return errors.Join(err, rdb.Close())
}

const (
	// presentWithin bounds a command's wait for silent masters of a cluster.
	presentWithin = 2 * time.Second
	// keyWithin bounds its wait for the master with a key.
	keyWithin = 3500 * time.Millisecond
	// membersWithin bounds its look for living timerds.
	membersWithin = time.Second
)

// withSchedule calls f with the schedule, and a connection to Redis. It names silent masters of a cluster on standard
// error, leaves them out of the schedule, and makes the exit code 1.
func withSchedule(cmd *cobra.Command, f func(context.Context, *schedule.Schedule, redis.UniversalClient) error) error {
	return withRedis(cmd, func(ctx context.Context, rdb redis.UniversalClient) error {
		return passingOver(ctx, cmd, rdb, func(s *schedule.Schedule) error { return f(ctx, s, rdb) })
	})
}

// passingOver is like withSchedule, but uses an existing connection.
func passingOver(ctx context.Context, cmd *cobra.Command, rdb redis.UniversalClient,
	f func(*schedule.Schedule) error) error {
	s := schedule.Open(ctx, rdb, schedule.DefaultMaxPayload)
	away, err := s.PassOver(ctx, presentWithin)
	if err != nil {
		return err
	}
	for _, master := range away {
		fmt.Fprintf(cmd.ErrOrStderr(), "timerd: %v; its timers are left out\n", master)
	}
	if err = f(s); err == nil && len(away) > 0 {
		err = exitCode(exitFailed)
	}
	return err
}

// withKey calls f with a connection to Redis and the key meant by the argument KEY. Of a cluster only the master with
// the key matters: if it does not answer in time, the error names it.
func withKey(cmd *cobra.Command, arg string, f func(ctx context.Context, rdb redis.UniversalClient,
	key string) error) error {
	return withRedis(cmd, func(ctx context.Context, rdb redis.UniversalClient) error {
		within, cancel := context.WithTimeout(ctx, keyWithin)
		defer cancel()
		key, err := keyMeant(within, rdb, arg)
		if err == nil {
			err = f(within, rdb, key)
		}
		s := schedule.New(rdb, schedule.DefaultMaxPayload)
		_, isNet := errors.AsType[net.Error](err)
		if server := s.ServerOf(s.Partition(key)); server != "" && isNet {
			err = schedule.Away{Addr: server, Err: err}
		}
		return err
	})
}

// keyMeant returns the key meant by the argument KEY: as in Redis, or as printed by timerd, with %XX. It decodes %XX
// only if the decoded key has a timer and the plain key has none. If both keys have one, the error names the spelling
// of each.
func keyMeant(ctx context.Context, rdb redis.UniversalClient, arg string) (string, error) {
	printed, err := keys.DecodeText(arg)
	if err != nil || printed == arg || keys.EncodeText(printed) != arg {
		return arg, nil //nolint:nilerr // a key may be written in another way than timerd prints it
	}
	timers := client.New(rdb)
	_, found, err := timers.Get(ctx, printed)
	if err != nil || !found {
		return arg, err
	}
	_, both, err := timers.Get(ctx, arg)
	if both {
		return "", fmt.Errorf(
			"KEY %q may mean two timers: write %q for the one with this key in Redis, and for the other its key as "+
				"it is in Redis, %q",
			arg, keys.EncodeText(arg), printed)
	}
	return printed, err
}

// warnIfUnattended warns on standard error if no living timerd serves the schedule, or if none serves one of the given
// namespaces. It prints nothing if that is unknown, because the command itself has worked. It names a virtual time.
func warnIfUnattended(ctx context.Context, cmd *cobra.Command, rdb redis.UniversalClient,
	namespaces ...keys.Namespace) {
	within, cancel := context.WithTimeout(ctx, membersWithin)
	defer cancel()
	s := schedule.Open(ctx, rdb, schedule.DefaultMaxPayload)
	if text := virtualTime(within, s); text != "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "timerd: %s\n", text)
	}
	members, err := query.Members(within, s)
	if err != nil {
		return
	}
	said := []string{status.Unattended(members)}
	if len(members) == 0 {
		if nodes, err := s.Nodes(within); err == nil && len(nodes) == 1 {
			if f, ok := status.OtherDatabase(within, nodes[0]); ok {
				said = []string{f.String()}
			}
		}
	}
	for _, n := range namespaces {
		said = append(said, status.Unserved(members, n))
	}
	for _, text := range said {
		if text != "" {
			fmt.Fprintf(cmd.ErrOrStderr(), "timerd: warning: %s\n", text)
		}
	}
}

// virtualTime returns the virtual time of a schedule as text; "" if it has none.
func virtualTime(ctx context.Context, s *schedule.Schedule) string {
	if !s.IsVirtual() {
		return ""
	}
	now, err := s.Clock(ctx)
	ahead, failed := s.Ahead(ctx)
	if err != nil || failed != nil {
		return ""
	}
	return fmt.Sprintf("virtual time %s, %s ahead", now.UTC().Format(timeLayout), diag.Duration(ahead))
}

// withJetStream reads the sections of the configuration, connects a client command to NATS and calls f; it connects to
// an embedded server at its address.
func withJetStream(cmd *cobra.Command, sections config.Section,
	f func(jetstream.JetStream, config.Config) error) error {
	c, log, err := commandConfig(cmd, sections)
	if err != nil {
		return err
	}
	js, err := connect.Connector{Logger: log}.JetStream(cmd.Context(), c.NATS.FromOutside())
	if err != nil && cmd.Context().Err() == nil {
		return diag.WithFix(err, connect.NATSFix(c.NATS, err))
	}
	if err != nil {
		return err
	}
	defer js.Conn().Close()
	return f(js, c)
}

// instantOf returns the instant of a moment, by the clock of Redis.
func instantOf(ctx context.Context, m admin.Moment, rdb redis.UniversalClient) (time.Time, error) {
	if at, ok := m.Instant(); ok {
		return at, nil
	}
	now, err := clockOf(ctx, rdb)
	return m.From(now), err
}

// clockOf returns the time of Redis's clock; in a cluster it is the clock of the first master that answers.
func clockOf(ctx context.Context, rdb redis.UniversalClient) (time.Time, error) {
	return schedule.Open(ctx, rdb, schedule.DefaultMaxPayload).Clock(ctx)
}

// withHolds calls f with the holds of the schedule.
func withHolds(cmd *cobra.Command, f func(ctx context.Context, h *admin.Holds, rdb redis.UniversalClient) error) error {
	return withRedis(cmd, func(ctx context.Context, rdb redis.UniversalClient) error {
		return explainMode(f(ctx, admin.NewHolds(schedule.Open(ctx, rdb, schedule.DefaultMaxPayload)), rdb))
	})
}

// explainMode adds the right setting to an error about another mode of Redis than configured.
func explainMode(err error) error {
	if errors.Is(err, schedule.ErrClusterNode) {
		return fmt.Errorf("%w: set TIMERD_REDIS_MODE=cluster", err)
	}
	return err
}
