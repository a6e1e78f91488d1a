// Package service is the running timerd, for `timerd serve` and `timerd dev`. It wires the listener, the reconciler,
// the publisher and the retry consumer, which do not know each other, serves HTTP, and stops everything in order.
package service

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/ledger"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/retry"
	"github.com/timerd-io/timerd/internal/rights"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/notify"
	"github.com/timerd-io/timerd/schedule"
)

// Service runs timerd once.
type Service struct {
	Config  config.Config // of every section
	Version string        // for the log and timerd status
	Virtual bool          // the installation is virtual; see schedule.MakeVirtual. Otherwise Run refuses one
	Logger  *slog.Logger
}

// Listeners are timerd's listening sockets; nil for off.
type Listeners struct {
	HTTP    net.Listener // /healthz, /readyz and /metrics
	Console net.Listener
}

// Listen listens on the addresses of a configuration. Its error names the variable.
func Listen(ctx context.Context, c config.Config) (Listeners, error) {
	var l Listeners
	var err error
	if l.HTTP, err = listen(ctx, "TIMERD_HTTP_ADDR", c.Service.HTTPAddr); err != nil {
		return l, err
	}
	if l.Console, err = listen(ctx, "TIMERD_CONSOLE_ADDR", c.Console.Addr); err != nil {
		l.Close()
	}
	return l, err
}

// Close closes both. It may be called again.
func (l Listeners) Close() {
	for _, one := range []net.Listener{l.HTTP, l.Console} {
		if one != nil {
			_ = one.Close() // it may be closed already
		}
	}
}

// Run runs timerd until ctx ends. A taken address is an error before anything else is tried. Its error
// wraps context.Canceled if ctx ended before timerd was running, and is nil after an orderly stop.
func (s Service) Run(ctx context.Context) error {
	l, err := Listen(ctx, s.Config)
	if err != nil {
		return err
	}
	return s.RunOn(ctx, l)
}

// RunOn is Run on open listeners. It closes l.
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
//	  └─────────── set again ──────────── retry consumer ◀────── requests ───────┘
func (s Service) RunOn(ctx context.Context, l Listeners) error {
	began := time.Now()
	defer l.Close() // running servers have closed them
	conns, err := open(ctx, s.Config, s.Logger)
	if err != nil {
		return err
	}
	if !s.Virtual {
		err = refuseVirtual(ctx, conns.rdb)
	}
	var steps []step
	if err == nil {
		steps, err = s.wire(ctx, conns, l, began)
	}
	if err != nil {
		return errors.Join(err, conns.close())
	}
	err = runAll(ctx, s.Logger, stopWithin, steps...)
	s.Logger.Info("timerd has stopped")
	return err
}

// wire builds the parts of the service, in the order of their stops. The sources of new work stop first, so that
// nothing more is claimed; then the publisher, after it has finished and settled its firings; then the HTTP server, and
// the connections last.
func (s Service) wire(ctx context.Context, conns *connections, l Listeners, began time.Time) ([]step, error) {
	c, log := s.Config, s.Logger
	self := s.self(began)
	member, window, err := s.join(ctx, conns, self.Instance, began)
	if err != nil {
		return nil, explain(ctx, conns.rdb, c, err)
	}
	conf := c.Streams()
	conf.Installation = member.ID()
	sched, err := s.load(ctx, conns.rdb, began)
	if err != nil {
		return nil, explain(ctx, conns.rdb, c, err)
	}
	sched.SetDuplicates(window)
	publisher := s.newPublisher(conns.js, sched, conf, member)
	all := &nodes{
		config: c.Service, log: log, taken: &takeovers{instance: self.Instance, log: log}, publisher: publisher,
		schedule:   sched,
		incidents:  newIncidents(sched, conns.js, conf, self.Instance, c.Service.SweepInterval, log),
		canPublish: func() bool { return publisher.Healthy() == nil },
		db:         c.Redis.DB, self: self, served: map[*schedule.Node]*servedNode{},
	}
	retries := s.newRetries(conns.js, sched, conf, member)
	sched.Agenda, retries.Wake = all, all.Armed

	registered := newRegistry()
	m := newMetrics(registered, c.Service.Namespaces)
	m.ends = streams.NewEnds(conns.js, conf, log)
	m.observe(registered, publisher, retries)
	past := newConsumption(conns.js, conf, self.Instance, log)
	retries.OnFailed = past.noteFailed
	all.metrics = m
	wrong := newProblems(status.Sources{
		Schedule: sched, JetStream: conns.js, NoNATS: natsAway(c.NATS), Streams: conf,
		Webhooks: new(status.RecentWebhooks), Overdue: new(status.OverdueWatch),
		Account:   new(status.RecentAccount),
		Databases: new(query.Databases), Written: publisher.Written,
		Needs: rights.Needs{Events: true, Hears: c.Service.Namespaces}, Clients: c.Clients(), Brief: true,
	}, all, registered)
	ready := s.newReadiness(wrong, all, publisher, member, retries)
	m.setComplete(c.Service.KeyspaceEvents)
	observeReadiness(registered, ready)
	surveys := &survey{schedule: sched, nodes: all, js: conns.js, letters: conf.DeadStream(), self: self, metrics: m,
		gone: all.incidents.gone, log: log}

	pages, err := s.consoleBeside(ctx, conns, conf, l.Console)
	if err != nil {
		return nil, err
	}
	s.logStart(l, self.Instance, member.ID(), began)
	return []step{
		append(pages, step{
			{"listeners and reconcilers", withoutError(all.run)},
			{"retry consumer", withoutError(retries.Run)},
			{"holds", withoutError(newHolds(sched, all, self.Instance, m, log).Run)},
			{"restored Redis", withoutError(admin.Restored{Schedule: sched, JetStream: conns.js, Streams: conf,
				Instance: self.Instance, Duplicates: publisher.Duplicates, Logger: log}.Run)},
		}...),
		{{"publisher", publisher.Run}},
		{
			{"HTTP server", func(ctx context.Context) error {
				return serveHTTP(ctx, l.HTTP, newHTTPHandler(ready, registered), log)
			}},
			{"readiness checks", withoutError(ready.run)},
			{"installation", member.Run},
			{"survey", withoutError(surveys.run)},
			{"consumers", withoutError(past.run)},
			{"takeovers", withoutError(all.taken.run)},
			{"watch for stops", withoutError(func(ctx context.Context) { watchStops(ctx, m.counts, log) })},
			{"problems", withoutError(wrong.run)},
			{"history", withoutError(m.ends.Run)},
			{"incidents", withoutError(all.incidents.run)},
			{"losses", withoutError(streams.NewLosses(conns.rdb, conns.js, conf, all.counted, log).Run)},
			{"ledger", withoutError(ledger.Keeper{Sources: ledger.Sources{Schedule: sched, JetStream: conns.js,
				Streams: conf}, Logger: log}.Run)},
		},
		{{"connections", conns.run}},
	}, nil
}

// logStart logs the start with the main settings.
func (s Service) logStart(l Listeners, instance, installation string, began time.Time) {
	s.Logger.Info("timerd is running", "version", s.Version, "instance", instance, "installation", installation,
		"redis", s.Config.Redis.Shown, "nats", s.Config.NATS.Shown, "namespaces", s.Config.Service.Namespaces.String(),
		"http", shownAddr("%s", l.HTTP), "console", shownAddr(consoleURL, l.Console), "after",
		time.Since(began).Round(time.Millisecond))
}

// join creates the streams, and joins the installation. It returns the duplicate window of the stream of firings, too,
// or the age of the stream if that is shorter.
func (s Service) join(ctx context.Context, conns *connections, instance string,
	began time.Time) (member *streams.Member, window time.Duration, err error) {
	conn := connect.Connector{Logger: s.Logger, Patience: max(startPatience-time.Since(began), time.Millisecond)}
	err = conn.Streams(ctx, s.Config.NATS, func(context.Context) (err error) {
		member, err = streams.Join(ctx, conns.rdb, conns.js, s.Config.Streams(), instance, s.Logger)
		if err != nil {
			return err
		}
		fired, err := conns.js.Stream(ctx, s.Config.Streams().FiredStream())
		if err == nil {
			is := fired.CachedInfo()
			window = min(is.Config.Duplicates, is.TimeStamp.Sub(is.Created))
		}
		return err
	})
	if err == nil && !s.Virtual && keys.IsVirtual(member.ID()) { // Redis was silent when it was first asked
		return nil, 0, errVirtual
	}
	return member, window, err
}

// newPublisher returns the publisher by the settings.
func (s Service) newPublisher(js jetstream.JetStream, sched *schedule.Schedule, conf streams.Config,
	member *streams.Member) *notify.Publisher {
	p := notify.NewPublisher(js.Conn(), js, sched)
	p.Streams = conf
	p.Permit = member.Permit
	p.MaxAttempts = func(k keys.Key) int { return s.Config.Service.Retry.For(k).MaxAttempts() }
	p.Late = s.Config.Service.Late
	p.PayloadAttempt = s.Config.Service.PayloadAttempt
	p.ContentType = s.Config.Service.EventData
	p.SettleAtOnce = s.Virtual // an advance waits for it
	p.Logger = s.Logger
	return p
}

// newRetries returns the retry consumer by the settings.
func (s Service) newRetries(js jetstream.JetStream, sched *schedule.Schedule, conf streams.Config,
	member *streams.Member) *retry.Consumer {
	c := retry.NewConsumer(js, sched)
	c.Streams = conf
	if s.Config.Redis.Mode == config.Cluster { // one server of a cluster may have half of the load
		c.Window *= 2
	}
	c.Permit = member.Permit
	c.Policies = s.Config.Service.Retry
	c.MaxPayload = sched.MaxPayload
	if s.Virtual {
		c.Ahead = sched.Ahead
	}
	c.Logger = s.Logger
	return c
}

// newReadiness returns the checks of /readyz.
func (s Service) newReadiness(wrong *problems, all *nodes, publisher *notify.Publisher, member *streams.Member,
	retries *retry.Consumer) *readiness {
	r := &readiness{log: s.Logger, besides: wrong.found, clients: wrong.from.Clients, tell: all.metrics.counts.setWrong}
	r.add(status.ReadyRedis, func(ctx context.Context) error {
		err := all.check(ctx)
		if lacks := wrong.lacks(); lacks != nil && (err == nil || redis.IsPermissionError(err)) {
			return lacks
		}
		return err
	})
	r.add("claims", all.claims, status.ReadyRedis)
	r.add(status.ReadyJetStream, func(context.Context) error {
		return cmp.Or(connected(wrong.from.JetStream, wrong.from.NoNATS), publisher.Healthy())
	})
	r.add("installation", func(context.Context) error { return member.Healthy() }, status.ReadyRedis,
		status.ReadyJetStream)
	// timers fire
	r.add("retry consumer", func(context.Context) error { return retries.Healthy() }, status.ReadyRedis,
		status.ReadyJetStream).lesser = true
	r.add(diag.CheckGuards, func(context.Context) error { return member.Guarded() }, status.ReadyRedis,
		status.ReadyJetStream).lesser = true
	if s.Config.Service.KeyspaceEvents {
		r.add("keyspace events", all.hears, status.ReadyRedis)
	}
	return r
}

// load returns the schedule with its function library in place, on the answering masters of a cluster, and reads the
// holds, so that no claim uses an older list. If no master answers, it keeps trying for startPatience since began.
func (s Service) load(ctx context.Context, rdb redis.UniversalClient, began time.Time) (*schedule.Schedule, error) {
	sched := newSchedule(rdb, s.Config.Service.MaxPayload, s.Virtual)
	sched.GuardBy(s.Config.Service.Guard)
	replaced := 0 // the earlier payload limit
	conn := connect.Connector{Logger: s.Logger, Patience: max(startPatience-time.Since(began), 0)}
	unfit := func(err error) bool {
		return errors.Is(err, schedule.ErrRedisTooOld) || lacksCommand(err) || diag.Refusal(err).IsPermanent()
	}
	err := conn.All(ctx, s.Config.Redis, unfit, func(ctx context.Context) error {
		was, err := sched.Load(ctx)
		replaced = max(replaced, was)
		if away, some := errors.AsType[*schedule.AwayError](err); some && !connect.RedisRefused(err) {
			for _, master := range away.Masters {
				s.Logger.Warn("a master of the cluster is away; its timers wait, and the others are served", "redis",
					master.Addr, "err", master.Err)
			}
			return nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	within, cancel := context.WithTimeout(ctx, holdsTimeout)
	defer cancel()
	if _, err := sched.Holds(within); err != nil {
		s.Logger.Warn("cannot read the list of holds; each server uses its own copy", "err", err)
	}
	if replaced > 0 {
		s.Logger.Warn("TIMERD_MAX_PAYLOAD changes the payload limit, for every timerd of this Redis", "bytes",
			s.Config.Service.MaxPayload, "before", replaced)
	}
	return sched, nil
}

// holdsTimeout bounds the wait for the list of holds at the start.
const holdsTimeout = time.Second

// withoutError makes a part of a function without an error.
func withoutError(run func(context.Context)) func(context.Context) error {
	return func(ctx context.Context) error {
		run(ctx)
		return nil
	}
}

// self returns the description that this timerd publishes of itself. Its instance id is unique, so that an operator can
// identify the process.
func (s Service) self(began time.Time) schedule.Self {
	host := hostname()
	return schedule.Self{
		Instance: newInstance(host),
		Version:  s.Version,
		Host:     host,
		PID:      os.Getpid(),
		Since:    began.UTC().Truncate(time.Millisecond),
		Settings: s.Config.Shared(),
		Listens:  schedule.ListensTo(s.Config.Service.Namespaces, s.Config.Redis.DB),
	}
}

func hostname() string {
	host, err := os.Hostname()
	if err != nil {
		host = "timerd"
	}
	return host
}

// newInstance returns a unique id.
func newInstance(host string) string {
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), rand.Text()[:8])
}
