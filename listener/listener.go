// Package listener follows the keyspace events of one Redis server and passes their hints to the schedule.
//
// Redis sends these events once, to the clients that are subscribed at that moment. So the listener must also notice
// when it may have missed some. It reports every such gap, and the reconciler makes an audit.
package listener

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/keys"
)

// Node is the part of the schedule on the server: a schedule.Node.
type Node interface {
	Observer
	Evidence
	Directory
}

// Listener follows one server. Set its fields before Run.
type Listener struct {
	rdb        *redis.Client
	node       Node
	coverage   Coverage
	db         int
	namespaces keys.Namespaces
	instance   string

	// Logger gets the faults of the subscription. Default: slog.Default().
	Logger *slog.Logger
	// CanaryInterval is the interval of canaries. If the events of a canary do not arrive within CanaryTimeout, events
	// count as lost. Defaults: 1s and 3s.
	CanaryInterval, CanaryTimeout time.Duration

	// Agenda receives the times for claims from the partitions. Default: they are ignored.
	Agenda Agenda
	// Metrics counts the work of the Listener. Default: nothing is counted.
	Metrics Metrics
	// Busy reports whether timers are fired as fast as possible. Expired events may then wait, because most of their
	// timers are about to fire. It is called often. Default: it returns false.
	Busy func() bool

	// Lag returns the time for which events may wait unread, so that several are read at once: a few milliseconds at
	// most. It is called often. Default: 0.
	Lag func() time.Duration

	hints    *buffer
	health   *health
	reported reported
}

// New returns a listener to the events of a database on the server of rdb. No other process that uses the server may
// have the same instance id.
func New(rdb *redis.Client, node Node, coverage Coverage, db int, namespaces keys.Namespaces,
	instance string) *Listener {
	return &Listener{
		rdb: rdb, node: node, coverage: coverage, db: db, namespaces: namespaces, instance: instance,
		Logger:         slog.Default(),
		CanaryInterval: time.Second,
		CanaryTimeout:  3 * time.Second,
		Agenda:         noAgenda{},
		Metrics:        noMetrics{},
		Busy:           func() bool { return false },
		Lag:            func() time.Duration { return 0 },
		hints:          newBuffer(),
		health:         newHealth(),
	}
}

// Healthy returns nil while events arrive and their hints reach the schedule, and otherwise the problem. A hint that
// Redis refuses counts after some seconds.
func (l *Listener) Healthy() error { return l.health.err() }

// Hears reports whether Healthy returns nil and the last canary to arrive was sent within the given time.
func (l *Listener) Hears(within time.Duration) bool {
	return l.Healthy() == nil && time.Since(l.health.lastArrival()) < within
}

// Run follows the events until ctx ends. It tries again after any failure.
func (l *Listener) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	l.hints.busy = l.Busy
	in := intake{
		observer: l.node, hints: l.hints, health: l.health, coverage: l.coverage, log: l.Logger, agenda: l.Agenda,
		metrics: l.Metrics,
	}
	wg.Go(func() { in.run(ctx) })

	retry := backoff.Backoff{Policy: backoff.Policy{First: firstPause, Longest: longestPause}, Logger: l.Logger}
	for {
		expiry, err := l.follow(ctx)
		l.hints.flush() // before others rely on a new subscription
		if ctx.Err() != nil {
			return
		}
		l.health.setFlow(err)
		if redis.IsPermissionError(err) && !l.reported.incomplete { // an operator has to act first
			l.reported.incomplete = true
			l.coverage.SetComplete(false)
		}
		if expiry { // the subscription worked, so a new row of failures begins
			retry.Succeed()
		}
		if !backoff.Sleep(ctx, retry.Fail("keyspace events do not flow; subscribing again", err)) {
			return
		}
	}
}

// follow follows the events by one subscription, and returns the cause of its end. It reports whether the expired event
// of a canary arrived.
func (l *Listener) follow(ctx context.Context) (expiry bool, err error) {
	s := session{
		rdb: l.rdb, db: l.db, namespaces: l.namespaces, evidence: l.node, directory: l.node, hints: l.hints,
		coverage: l.coverage, reported: &l.reported, log: l.Logger, agenda: l.Agenda, metrics: l.Metrics, lag: l.Lag,
		canary: &canary{
			rdb: l.rdb, evidence: l.node, directory: l.node, hints: l.hints, health: l.health, coverage: l.coverage,
			reported: &l.reported, interval: l.CanaryInterval, timeout: l.CanaryTimeout, log: l.Logger,
		},
		apps: &apps{
			node: l.node, db: l.db, namespaces: l.namespaces, coverage: l.coverage, reported: &l.reported,
			log:   l.Logger,
			known: map[string]*app{},
		},
	}
	s.canary.subscribe = s.moveCanaries
	s.canary.begin(l.node.AnyPartition(), l.instance)
	err = s.run(ctx)
	return s.canary.arrived(expired), err
}
