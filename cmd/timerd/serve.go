package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/notify"
	"github.com/timerd-io/timerd/schedule"
)

func newServe() *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Run timerd, configured by the environment",
		Long:  "Run timerd until SIGTERM or SIGINT.\n\n" + environmentHelp(),
		Args:  arguments(cobra.NoArgs),
		RunE:  runServe,
	}
}

func runServe(cmd *cobra.Command, _ []string) error {
	c, log, err := commandConfig(cmd, sectionRedis|sectionNATS|sectionService)
	if err != nil {
		return err
	}
	useProcessors(c)
	err = serve(cmd.Context(), c, log)
	if cmd.Context().Err() != nil && errors.Is(err, context.Canceled) {
		return nil // it was told to stop before it had started
	}
	return err
}

// useProcessors has Go run on one processor, unless GOMAXPROCS says otherwise: Redis
// has one for its commands too, and is busy with a timer for longer than timerd. To
// hand each of many short pieces of work to another processor would cost a quarter
// more, and time. In a cluster there are many Redis servers to keep up with.
func useProcessors(c config) {
	if os.Getenv("GOMAXPROCS") == "" && c.Redis.Mode != modeCluster && !c.NATS.Embedded {
		runtime.GOMAXPROCS(1)
	}
}

// serve runs timerd until ctx ends. A taken HTTP address is an error before
// anything else is tried.
func serve(ctx context.Context, c config, log *slog.Logger) error {
	l, err := listenHTTP(ctx, c.Service.HTTPAddr)
	if err != nil {
		return err
	}
	return serveOn(ctx, l, c, log)
}

// serveOn runs timerd until ctx ends. Its HTTP server answers on l, which may be
// nil for none, and which is closed at the end.
//
// In a cluster there is a listener and a reconciler for each master.
//
//	                 hints                     wake, gap
//	Redis ── events ──────▶ listener ─────────────────────────▶ reconciler
//	  ▲  ▲                     │ observe                  claim │    ▲ wait
//	  │  └─────────────────────┴──────── schedule ◀─────────────┘    │
//	  │                                      ▲                       ▼ firings
//	  ├── trigger keys, index                └──── settle ─────── publisher ──▶ NATS
//	  │                                                                          │
//	  └─────────── set again ───────────── retry intake ◀─────── requests ───────┘
//
// At the end the listener, the reconciler and the retry intake stop first, so that
// nothing new is claimed; then the publisher finishes and settles what it has; then the HTTP
// server and the connections end.
func serveOn(ctx context.Context, httpListener net.Listener, c config, log *slog.Logger) (err error) {
	began := time.Now()
	if httpListener != nil {
		defer func() { _ = httpListener.Close() }() // its server has, once it runs
	}
	conns, err := connectBoth(ctx, connector{log: log, patience: startPatience}, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conns.close()) }()
	rdb, nc := conns.rdb, conns.nc
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("JetStream: %w", err)
	}
	if err := notify.EnsureStreams(ctx, js, c.streams()); err != nil {
		return err
	}

	sched := schedule.New(rdb, c.Service.MaxPayload)
	if err := sched.Load(ctx); err != nil {
		return err
	}

	instance := instanceID()
	registry := prometheus.NewRegistry()
	publisher := notify.NewPublisher(nc, js, sched)
	m := newMetrics(registry, publisher.InFlight)
	publisher.Streams = c.streams()
	publisher.Policies = c.Service.Retry
	publisher.Logger = log
	publisher.Hooks = m.publisherHooks()

	single, _ := rdb.(*redis.Client) // nil for a cluster
	parts := &shards{
		config: c.Service, log: log, metrics: m, publisher: publisher, schedule: sched,
		server: single, db: c.Redis.db(), instance: instance, all: map[*redis.Client]*shard{},
	}

	retries := notify.NewIntake(js, sched)
	retries.Streams = c.streams()
	retries.Policies = c.Service.Retry
	retries.Logger = log
	retries.Hooks = m.intakeHooks(parts.wake)

	ready := &readiness{log: log}
	ready.add("redis", parts.ping)
	ready.add("jetstream", func(context.Context) error { return publisher.Healthy() })
	ready.add("retry intake", func(context.Context) error { return retries.Healthy() })
	if c.Service.KeyspaceEvents {
		m.setComplete(true)
		ready.add("keyspace events", parts.hears)
	}
	intake := []func(context.Context){parts.run, retries.Run}

	log.Info("timerd is running", "version", versionText(), "instance", instance, "redis", c.Redis.Shown, "nats", c.NATS.Shown,
		"namespaces", c.Service.Namespaces.String(), "http", httpAddr(httpListener), "after", time.Since(began).Round(time.Millisecond))
	err = runAll(ctx, intake, publisher.Run, func(ctx context.Context) error {
		if httpListener == nil {
			<-ctx.Done()
			return nil
		}
		return serveHTTP(ctx, httpListener, newHTTPHandler(ready, registry), log)
	}, ready.run)
	log.Info("timerd has stopped")
	return err
}

// runAll runs the parts of the service until ctx ends or the HTTP server or the
// publisher fails, and ends them in order: intake, publisher, the rest.
func runAll(ctx context.Context, intake []func(context.Context), publish, answer func(context.Context) error, watch func(context.Context)) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	beyond := context.WithoutCancel(ctx)
	publishing, stopPublishing := context.WithCancel(beyond)
	defer stopPublishing()
	answering, stopAnswering := context.WithCancel(beyond)
	defer stopAnswering()

	var first, second, third sync.WaitGroup
	third.Go(func() { watch(answering) })
	third.Go(func() {
		if err := answer(answering); err != nil {
			stop(err)
		}
	})
	second.Go(func() {
		if err := publish(publishing); err != nil {
			stop(err)
		}
	})
	for _, part := range intake {
		first.Go(func() { part(ctx) })
	}
	<-ctx.Done()
	first.Wait()
	stopPublishing()
	second.Wait()
	stopAnswering()
	third.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// listenHTTP returns nil for no address.
func listenHTTP(ctx context.Context, addr string) (net.Listener, error) {
	if addr == "" {
		return nil, nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("TIMERD_HTTP_ADDR: %w; choose another address, or off", err)
	}
	return l, nil
}

func httpAddr(l net.Listener) string {
	if l == nil {
		return "off"
	}
	return l.Addr().String()
}

// instanceID returns a name that no other process has, and that tells an
// operator which one this is.
func instanceID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "timerd"
	}
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), rand.Text()[:8])
}

// abbreviate cuts a long key for the log.
func abbreviate(key string) string {
	const most = 100
	if len(key) <= most {
		return key
	}
	return fmt.Sprintf("%s… (%d bytes)", key[:most], len(key))
}
