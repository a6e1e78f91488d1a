package service

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/console"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/rights"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/internal/streams"
)

// The console has its own few connections with short timeouts, so that pages do not slow down firings.
const (
	consoleConnections = 4
	consoleDial        = time.Second
	consolePatience    = 3 * time.Second
	// consolePresent bounds the wait for silent masters of a cluster, once a second while pages are requested.
	consolePresent = time.Second

	consoleURL = "http://%s/" // of its address, for the log
)

// consolePart is the console with its connections.
type consolePart struct {
	console *console.Console
	pulse   *history.Live
	rdb     redis.UniversalClient
	js      jetstream.JetStream
}

// consoleBeside returns a console that is connected to the servers of the service, or nothing without a listener.
func (s Service) consoleBeside(ctx context.Context, conns *connections, conf streams.Config,
	l net.Listener) (step, error) {
	if l == nil {
		return nil, nil
	}
	js, err := conns.jetStream(ctx, connect.Connector{Logger: s.Logger, Patience: startPatience}, s.Config.NATS)
	if err != nil {
		return nil, err
	}
	pages, err := newConsole(s.Config, js, conf, s.Virtual, s.Logger)
	if err != nil {
		return nil, err
	}
	return step{{"console", func(ctx context.Context) error { return pages.run(ctx, l) }}}, nil
}

// newConsole returns a console, of a virtual installation or not, with a connection to Redis of its own. It closes js
// when it ends, or if it cannot begin.
func newConsole(c config.Config, js jetstream.JetStream, conf streams.Config, virtual bool,
	log *slog.Logger) (*consolePart, error) {
	p := &consolePart{js: js, rdb: connect.NewRedisClient(c.Redis.Limited(consoleConnections, consoleDial,
		consolePatience))}
	sched := newSchedule(p.rdb, c.Service.MaxPayload, virtual) // without silent masters
	p.pulse = history.NewLive(func(ctx context.Context) ([]query.Member, error) { return query.Members(ctx, sched) })
	// with silent masters too: a hold names the servers that it has not reached
	caller := admin.NewHolds(newSchedule(p.rdb, c.Service.MaxPayload, virtual))
	caller.Logger = log
	var webhooks status.RecentWebhooks
	var overdue status.OverdueWatch
	var account status.RecentAccount
	var databases query.Databases
	var written streams.WriteErrors
	past := history.New(js, conf.Names)
	var actions *console.Actions
	if c.Console.Actions {
		actions = &console.Actions{
			Schedule: sched, Timers: admin.NewTimers(sched), Holds: caller, Firings: admin.NewFirings(sched, past),
			Streams: js, Names: conf.Names,
			Journal: admin.NewJournal(func() (jetstream.JetStream, error) { return js, nil }, conf, event.ViaConsole,
				func(err error) { log.Warn("console: an action is not in the history", "err", err) }),
		}
	}
	var err error
	p.console, err = console.New(c.Console, console.Sources{
		Status: func(ctx context.Context) *status.Report {
			away, err := sched.PassOver(ctx, consolePresent)
			if err != nil {
				// pages ask each master, and show its error
				log.Debug("console: cannot find the masters that answer", "err", err)
			}
			return report(ctx, status.Sources{
				Schedule: sched, Masters: away, JetStream: js, NoNATS: natsAway(c.NATS), Streams: conf,
				Needs: rights.Needs{Events: true}, Clients: c.Clients(),
				Webhooks: &webhooks, Overdue: &overdue, Account: &account, Databases: &databases, Written: &written,
			})
		},
		Index:    sched,
		Holds:    admin.NewHolds(sched).List,
		History:  past,
		Tail:     history.NewTail(past),
		Pulse:    p.pulse.View,
		Policies: c.Service.Retry,
		Late:     c.Service.Late,
		Guards:   c.Service.Guard,
	}, actions, log)
	if err != nil {
		js.Conn().Close()
		return nil, errors.Join(err, p.rdb.Close())
	}
	return p, nil
}

// run answers on l until ctx ends, and closes the console's connections.
func (p *consolePart) run(ctx context.Context, l net.Listener) error {
	sampling, stop := context.WithCancel(ctx)
	sampled := make(chan struct{})
	go func() {
		defer close(sampled)
		p.pulse.Run(sampling)
	}()
	err := p.console.Serve(ctx, l)
	stop()
	<-sampled
	p.js.Conn().Close()
	if closeErr := p.rdb.Close(); err == nil {
		err = closeErr
	}
	return err
}
