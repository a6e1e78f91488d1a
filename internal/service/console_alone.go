package service

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
)

// ConsoleAlone is the console as a program of its own, for times without a timerd.
type ConsoleAlone struct {
	Config config.Config // with SectionConsole
	Logger *slog.Logger
}

// Run answers until ctx ends. A server that is away is no error: the pages report it.
func (a ConsoleAlone) Run(ctx context.Context) error {
	l, err := listen(ctx, "TIMERD_CONSOLE_ADDR", a.Config.Console.Addr)
	if err != nil {
		return err
	}
	return a.runOn(ctx, l)
}

func (a ConsoleAlone) runOn(ctx context.Context, l net.Listener) error {
	defer func() { _ = l.Close() }() // a running server has closed it
	nc, err := connect.Connector{Logger: a.Logger}.NATS(ctx, a.Config.NATS.FromOutside(),
		nats.RetryOnFailedConnect(true))
	if err != nil {
		return err
	}
	rdb := connect.NewRedisClient(a.Config.Redis.Limited(1, consoleDial, consolePatience))
	defer func() { _ = rdb.Close() }() // nothing is pending on it
	if err := refuseVirtual(ctx, rdb); err != nil {
		nc.Close()
		return err
	}
	js, err := connect.NewJetStream(nc, a.Config.NATS)
	if err != nil {
		nc.Close()
		return err
	}
	pages, err := newConsole(a.Config, js, a.Config.Streams(), false, a.Logger)
	if err != nil {
		return err
	}
	a.Logger.Info("the console is running", "console", shownAddr(consoleURL, l), "redis", a.Config.Redis.Shown, "nats",
		a.Config.NATS.Shown)
	return runAll(ctx, a.Logger, stopWithin, step{
		{"console", func(ctx context.Context) error { return pages.run(ctx, l) }},
		{"looks for a virtual clock", func(ctx context.Context) error { return findVirtual(ctx, rdb) }},
	})
}

// virtualEvery is the interval of the console's looks for a virtual clock.
const virtualEvery = time.Second

// findVirtual looks until ctx ends, and returns an error once the installation of the Redis is virtual: it may have
// been silent when the console began, or another one may answer at its address.
func findVirtual(ctx context.Context, rdb redis.UniversalClient) error {
	for backoff.Sleep(ctx, virtualEvery) {
		if err := refuseVirtual(ctx, rdb); err != nil {
			return err
		}
	}
	return nil
}
