// Package reconciler makes timers fire on time. It sleeps until the first timer is due, claims due timers in batches
// and passes them on for publishing. Its regular sweeps and audits recover timers after a lost event or a crash.
package reconciler

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Node is a server with its part of the schedule: a schedule.Node.
type Node interface {
	Server
	Claimer
	Scanner
	Keeper
	Restorer
	Membership
	Auditor
}

// Reconciler serves one node of the schedule. Set its fields before Run.
type Reconciler struct {
	// Coverage records how much the schedule can rely on the events of the node. [New] creates it.
	Coverage *Coverage

	// Logger gets a line for everything unusual. Default: slog.Default().
	Logger *slog.Logger
	// SweepInterval is the time between sweeps. It limits the lateness if every event is lost. Default: 1s.
	SweepInterval time.Duration
	// Lease is the time for which a claim outlives this process. Default: 10s.
	Lease time.Duration
	// Self describes this timerd in its heartbeats. Default: the instance id alone.
	Self schedule.Self
	// Counts returns the counts since the start for a heartbeat, or nil to leave them out. Default: always nil.
	Counts func() *schedule.Counts

	// CanPublish reports whether events can be published now. If not, heartbeats rank this timerd behind the timerds
	// that can publish. Default: true.
	CanPublish func() bool
	// Events are the keyspace events of the node. Default: this timerd always hears all of them.
	Events Events
	// Metrics counts the work of the Reconciler. Default: nothing is counted.
	Metrics Metrics

	node       Node
	publisher  Publisher
	namespaces keys.Namespaces
	instance   string

	agenda    *agenda
	health    *health
	claiming  atomic.Bool   // due timers are left to claim
	auditing  atomic.Bool   // an audit is under way
	takenOver chan struct{} // partitions came from another server
	asked     asked
}

// New returns a reconciler for the timers on a node. It adopts keys of the namespaces. No other process that serves the
// same schedule may have the same instance id.
func New(node Node, p Publisher, namespaces keys.Namespaces, instance string) *Reconciler {
	return &Reconciler{
		node: node, publisher: p, namespaces: namespaces, instance: instance,
		Coverage:      newCoverage(node.Now),
		Logger:        slog.Default(),
		SweepInterval: time.Second,
		Lease:         10 * time.Second,
		Self:          schedule.Self{Instance: instance},
		Counts:        func() *schedule.Counts { return nil },
		CanPublish:    func() bool { return true },
		Events:        allEvents{},
		Metrics:       noMetrics{},
		agenda:        newAgenda(node),
		health:        newHealth(),
		takenOver:     make(chan struct{}, 1),
	}
}

// Busy reports whether due timers are left to claim, and the reconciler does nothing but claim them.
func (r *Reconciler) Busy() bool { return r.claiming.Load() && !r.auditing.Load() }

// Wake passes the due time of a partition's timer; schedule.AtOnce means an owed timer. schedule.Nothing and a
// partition of another node have no effect. Wake never blocks.
func (r *Reconciler) Wake(p keys.Partition, due schedule.Millis) { r.agenda.wake(p, due) }

// Armed is Wake for a timer that this process has set.
func (r *Reconciler) Armed(p keys.Partition, due schedule.Millis) { r.agenda.armed(p, due) }

// Claimed passes the time of a claim from a partition by any timerd, and the time of the next claim there, or
// schedule.Nothing. It saves useless claims of all timerds but the first, and never blocks.
func (r *Reconciler) Claimed(p keys.Partition, at, next schedule.Millis) {
	r.agenda.peerClaimed(p, at, next)
}

// SetPlace sets the place of the node among the masters of a cluster, by name. With several timerds each master has a
// different timerd as its first.
func (r *Reconciler) SetPlace(place int) { r.agenda.setPlace(place) }

// IsFirst reports whether this timerd is the first to claim from the node.
func (r *Reconciler) IsFirst() bool { return r.agenda.isFirst() }

// TookOver requests a sweep and an audit as soon as possible, because partitions came from another server. It never
// blocks.
func (r *Reconciler) TookOver() {
	signal(r.takenOver)
	r.Coverage.ask(reasonTakenOver)
}

// Healthy returns nil while due timers are found and claimed. Otherwise it returns the operation that has failed for
// some seconds: the sweep, or every claim from a partition. It answers from memory.
func (r *Reconciler) Healthy() error { return r.health.err(r.node) }

// Run fires timers until ctx ends. Failures are tried again.
func (r *Reconciler) Run(ctx context.Context) {
	precise, err := newPreciseTimer()
	if err != nil {
		r.Logger.Warn("no precise timer: firings may be a millisecond later", "err", err)
	}
	defer func() { _ = precise.close() }()
	fire := firer{
		name: r.node.Name(), claimer: r.node, publisher: r.publisher, agenda: r.agenda, health: r.health,
		busy: &r.claiming, lease: r.Lease, log: r.Logger, metrics: r.Metrics, precise: precise,
	}
	restore := restorer{
		node: r.node, agenda: r.agenda, coverage: r.Coverage, lease: r.Lease, log: r.Logger, metrics: r.Metrics,
		torn: make(chan []schedule.Torn, 1),
	}
	sweep := sweeper{
		onTorn: restore.noteTorn, scanner: r.node, keeper: r.node, agenda: r.agenda, health: r.health,
		takenOver: r.takenOver, interval: r.SweepInterval, lease: r.Lease, log: r.Logger, metrics: r.Metrics,
		onSetBack: func() { r.Coverage.ask(reasonSetBack) },
	}
	beat := beater{
		members: r.node, agenda: r.agenda, interval: r.SweepInterval, self: r.Self, counts: r.Counts, log: r.Logger,
		canPublish: r.CanPublish, events: r.Events, metrics: r.Metrics,
	}
	audit := auditor{
		server: r.node, node: r.node, agenda: r.agenda, coverage: r.Coverage, auditing: &r.auditing,
		namespaces: r.namespaces, instance: r.instance, interval: r.SweepInterval, lease: r.Lease, log: r.Logger,
		metrics: r.Metrics,
		asked:   &r.asked, restore: restore.restore,
	}
	var wg sync.WaitGroup
	for _, loop := range []func(context.Context){fire.run, sweep.run, restore.run, beat.run, audit.run} {
		wg.Go(func() { loop(ctx) })
	}
	wg.Wait()
}
