package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/embedded"
	"github.com/timerd-io/timerd/schedule"
)

// closeTimeout bounds the end of the connections.
const closeTimeout = 2 * time.Second

// connections are the service's connections to its servers.
type connections struct {
	rdb      redis.UniversalClient
	js       jetstream.JetStream
	embedded *embedded.Server // nil if NATS is elsewhere
}

// startPatience is the time for connecting to servers that are away at the start.
const startPatience = 30 * time.Second

// open connects to Redis and NATS at the same time, so that the patience with both is no longer than with one of them.
// An error of one connection ends the wait for the other.
func open(ctx context.Context, c config.Config, log *slog.Logger) (*connections, error) {
	conn := connect.Connector{Logger: log, Patience: startPatience}
	conns := &connections{}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		if conns.rdb, err = conn.Redis(ctx, c.Redis); connect.RedisRefused(err) {
			return diag.WithFix(err, connect.RedisFix(err))
		} else if err != nil {
			return err
		}
		return explain(ctx, conns.rdb, c, checkMode(ctx, conns.rdb, c.Redis.Mode))
	})
	group.Go(func() error { return conns.openNATS(ctx, conn, c) })
	if err := group.Wait(); err != nil {
		return nil, errors.Join(err, conns.close())
	}
	return conns, nil
}

// openNATS connects to NATS, and first starts an embedded server.
func (s *connections) openNATS(ctx context.Context, conn connect.Connector, c config.Config) (err error) {
	if c.NATS.Embedded {
		if s.embedded, err = conn.Embedded(ctx, c.NATS, c.Service.MaxPayload); err != nil {
			return err
		}
	}
	s.js, err = s.jetStream(ctx, conn, c.NATS)
	return err
}

// jetStream opens a connection to NATS.
func (s *connections) jetStream(ctx context.Context, conn connect.Connector,
	c config.NATS) (jetstream.JetStream, error) {
	if s.embedded != nil {
		return conn.JetStream(ctx, c, nats.InProcessServer(s.embedded))
	}
	return conn.JetStream(ctx, c)
}

// run keeps the connections open until ctx ends.
func (s *connections) run(ctx context.Context) error {
	<-ctx.Done()
	return s.close()
}

// close closes NATS first, then Redis. A NATS that is away is no error: unacknowledged firings are not settled.
func (s *connections) close() error {
	var errs []error
	if s.js != nil {
		nc := s.js.Conn()
		err := nc.FlushTimeout(closeTimeout)
		nc.Close()
		if !errors.Is(err, nats.ErrConnectionClosed) && !errors.Is(err, nats.ErrConnectionReconnecting) &&
			!errors.Is(err, nats.ErrTimeout) {
			errs = append(errs, err)
		}
	}
	if s.embedded != nil {
		errs = append(errs, s.embedded.Stop())
	}
	if s.rdb != nil {
		errs = append(errs, s.rdb.Close())
	}
	return errors.Join(errs...)
}

// newSchedule returns the schedule, by a virtual clock if the installation is virtual.
func newSchedule(rdb redis.UniversalClient, maxPayload int, virtual bool) *schedule.Schedule {
	if virtual {
		return schedule.NewVirtual(rdb, maxPayload)
	}
	return schedule.New(rdb, maxPayload)
}

// errVirtual says that an installation is for tests alone.
var errVirtual = errors.New("timerd dev --virtual serves this installation, whose clock is virtual: nothing else " +
	"may; choose other servers")

// refuseVirtual returns an error if the installation of a Redis is virtual.
func refuseVirtual(ctx context.Context, rdb redis.UniversalClient) error {
	if schedule.Open(ctx, rdb, schedule.DefaultMaxPayload).IsVirtual() {
		return errVirtual
	}
	return nil
}

// checkMode returns an error if the server is a node of a Redis Cluster although the mode is another.
func checkMode(ctx context.Context, rdb redis.UniversalClient, mode config.Mode) error {
	err := schedule.New(rdb, schedule.DefaultMaxPayload).CheckMode(ctx)
	if errors.Is(err, schedule.ErrClusterNode) {
		return fmt.Errorf("%w: set TIMERD_REDIS_MODE=cluster, not %s", err, mode)
	}
	return err
}
