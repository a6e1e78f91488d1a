// Package standalone is a timerd with a private Redis and a NATS within the process, on free ports of 127.0.0.1, for
// every key of four parts. timerd dev and package timerdtest run it.
package standalone

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/service"
	"github.com/timerd-io/timerd/schedule"
)

// Options are the settings of an installation. In the zero Options ports are free ones, and the clock is Redis's.
type Options struct {
	RedisServer         string // the program; "" for redis-server or valkey-server in PATH
	RedisPort, NATSPort int    // 0 for a free one
	HTTPAddr            string // host:port, or off
	ConsoleAddr         string // host:port, or off
	Virtual             bool   // due times are by a virtual clock, which package travel moves
	// Given, if not nil, are the settings in place of the environment's.
	Given *config.Given
}

// Installation is a timerd with servers of its own. Its Redis runs from Open to Close, the others while Run does.
type Installation struct {
	Config config.Config
	Redis  *devserver.Redis

	virtual   bool
	dir       string
	listeners service.Listeners
}

// Open starts the Redis and listens on the addresses. Its error is devserver.ErrNoRedis if there is no program for it.
func Open(ctx context.Context, o Options) (i *Installation, err error) {
	i = &Installation{virtual: o.Virtual}
	defer func() {
		if err != nil {
			err = errors.Join(err, i.Close())
		}
	}()
	for _, port := range []*int{&o.RedisPort, &o.NATSPort} {
		if *port == 0 {
			if *port, err = devserver.FreePort(); err != nil {
				return i, err
			}
		}
	}
	if i.dir, err = os.MkdirTemp("", "timerd-dev-"); err != nil {
		return i, fmt.Errorf("make a directory for the servers: %w; TMPDIR names another place", err)
	}
	i.Config, err = config.Dev{
		RedisURL: "redis://" + devserver.Address(o.RedisPort) + "/0",
		NATSAddr: devserver.Address(o.NATSPort),
		DataDir:  filepath.Join(i.dir, "nats"),
		HTTPAddr: cmp.Or(o.HTTPAddr, "off"),

		ConsoleAddr: cmp.Or(o.ConsoleAddr, "off"),
		Given:       o.Given,
	}.Read()
	if err != nil {
		return i, err
	}
	// Listening here, and not in the service, makes sure that this timerd answers, and no other one.
	if i.listeners, err = service.Listen(ctx, i.Config); err != nil {
		return i, err
	}
	if i.listeners.HTTP != nil {
		i.Config.Service.HTTPAddr = i.listeners.HTTP.Addr().String()
	}
	if i.listeners.Console != nil {
		i.Config.Console.Addr = i.listeners.Console.Addr().String()
	}
	i.Redis, err = devserver.StartRedis(ctx, devserver.Binary(o.RedisServer), devserver.Directory(i.dir),
		devserver.Port(o.RedisPort))
	if err == nil && o.Virtual {
		rdb := connect.NewRedisClient(i.Config.Redis)
		err = errors.Join(schedule.MakeVirtual(ctx, rdb, rand.Text()), rdb.Close())
	}
	return i, err
}

// Run runs timerd, beside other parts, until ctx ends or one of them fails. Call it once.
func (i *Installation) Run(ctx context.Context, version string, log *slog.Logger,
	beside ...func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return service.Service{Config: i.Config, Version: version, Virtual: i.virtual, Logger: log}.RunOn(ctx,
			i.listeners)
	})
	group.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-i.Redis.Done():
			return fmt.Errorf("redis-server has ended, exit code %d\n%s", i.Redis.ExitCode(), i.Redis.Log())
		}
	})
	for _, part := range beside {
		group.Go(func() error { return part(ctx) })
	}
	return group.Wait()
}

// Close stops the Redis and deletes all data. Call it after Run has returned.
func (i *Installation) Close() error {
	i.listeners.Close() // a running service has closed them
	var errs []error
	if i.Redis != nil {
		errs = append(errs, i.Redis.Close())
	}
	if i.dir != "" {
		errs = append(errs, os.RemoveAll(i.dir))
	}
	return errors.Join(errs...)
}
