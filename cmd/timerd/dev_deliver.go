package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/deliver"
	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/standalone"
	"github.com/timerd-io/timerd/internal/travel"
	"github.com/timerd-io/timerd/keys"
)

// devWebhooks are the webhooks of timerd dev --deliver.
type devWebhooks struct {
	load    func() (*deliver.Config, error)
	durable string // the consumer of their group
}

// openWebhooks reads the file of --deliver; nil for none. Its error lists all faults.
func openWebhooks(file string) (*devWebhooks, error) {
	if file == "" {
		return nil, nil
	}
	load := func() (*deliver.Config, error) { return loadEndpoints("--deliver", file) }
	endpoints, err := load()
	if err != nil {
		return nil, err
	}
	return &devWebhooks{load, keys.DeliverConsumer(endpoints.Group)}, nil
}

// run calls the endpoints until ctx ends. After SIGHUP it reads the file again.
func (w *devWebhooks) run(ctx context.Context, in *standalone.Installation, log *slog.Logger) error {
	if err := awaitReady(ctx, in.Config.Service.HTTPAddr); err != nil {
		return err
	}
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)
	return in.Deliver(ctx, standalone.Webhooks{Load: w.load, Reload: reload, Version: buildText(), Logger: log})
}

// await waits until run asks for events.
func (w *devWebhooks) await(ctx context.Context, js jetstream.JetStream, c config.Config) error {
	err := devserver.Until(ctx, devReady, func() error {
		return travel.Asks(ctx, js, c.NATS.Streams.FiredStream(), w.durable)
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("webhooks were not ready within %v: %w", devReady, err)
	}
	return err
}
