package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/timerd-io/timerd/notify"
)

// closeTimeout bounds the end of the connections.
const closeTimeout = 2 * time.Second

// connections are what the service stands on.
type connections struct {
	rdb      redis.UniversalClient
	nc       *nats.Conn
	embedded *embeddedNATS // nil if NATS is elsewhere
}

// connectBoth connects to Redis and NATS at the same time, so that the patience
// with each counts once. An error of one ends the wait for the other.
func connectBoth(ctx context.Context, connect connector, c config) (*connections, error) {
	conns := &connections{}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		if conns.rdb, err = connect.redis(ctx, c.Redis); err != nil {
			return err
		}
		return checkMode(ctx, conns.rdb, c.Redis.Mode)
	})
	group.Go(func() error { return conns.openNATS(ctx, connect, c) })
	if err := group.Wait(); err != nil {
		return nil, errors.Join(err, conns.close())
	}
	return conns, nil
}

// openNATS connects to NATS, or starts the embedded server and connects to that.
func (s *connections) openNATS(ctx context.Context, connect connector, c config) (err error) {
	options := notify.ConnOptions()
	if c.NATS.Embedded {
		if s.embedded, err = startEmbedded(c.NATS, c.Service.MaxPayload, connect.log); err != nil {
			return err
		}
		options = append(options, nats.InProcessServer(s.embedded))
	}
	s.nc, err = connect.nats(ctx, c.NATS, options...)
	return err
}

// close ends what was opened: NATS first, then Redis. A NATS that is away is no
// error: what it has not acknowledged is not settled.
func (s *connections) close() error {
	var errs []error
	if s.nc != nil {
		err := s.nc.FlushTimeout(closeTimeout)
		s.nc.Close()
		if !errors.Is(err, nats.ErrConnectionClosed) && !errors.Is(err, nats.ErrConnectionReconnecting) && !errors.Is(err, nats.ErrTimeout) {
			errs = append(errs, err)
		}
	}
	if s.embedded != nil {
		errs = append(errs, s.embedded.stop())
	}
	if s.rdb != nil {
		errs = append(errs, s.rdb.Close())
	}
	return errors.Join(errs...)
}

// checkMode returns an error if the server is a node of a Redis Cluster though the
// mode is another, so that most keys would be out of reach. That a cluster client
// has no cluster, it says itself.
func checkMode(ctx context.Context, rdb redis.UniversalClient, mode redisMode) error {
	if mode == modeCluster {
		return nil
	}
	info, err := rdb.Info(ctx, "cluster").Result()
	if err != nil {
		return fmt.Errorf("ask Redis whether it is a cluster: %w", err)
	}
	if strings.Contains(info, "cluster_enabled:1") {
		return fmt.Errorf("this Redis is part of a Redis Cluster: set TIMERD_REDIS_MODE=cluster, not %s", mode)
	}
	return nil
}
