package service

import (
	"context"
	"errors"
	"log/slog"
	"net"

	"github.com/nats-io/nats.go"

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
	if err := errors.Join(refuseVirtual(ctx, rdb), rdb.Close()); err != nil {
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
	return pages.run(ctx, l)
}
