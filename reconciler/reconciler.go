// Package reconciler makes timers fire on time. It sleeps until the first one is due, claims what is due in batches and
// hands it on for publishing. What any lost event or crash left behind, its regular sweeps and audits recover.
package reconciler

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// The pauses between tries of what fails.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = 2 * time.Second
)

// standbyStep is how much later each rank wakes than the one before it.
const standbyStep = 5 * time.Millisecond

// Publisher takes claimed firings over.
type Publisher interface {
	// Wait returns when firings of a node, by its name, can be published, or an error when ctx ends. Nothing is claimed before it
	// returns.
	Wait(ctx context.Context, node string) error
	// Publish takes firings over: once ctx has ended, as many as there is room for, and gives the others back.
	Publish(ctx context.Context, firings []schedule.Firing) error
}

// Reconciler serves one node of the schedule. Set its fields before Run.
type Reconciler struct {
	node       *schedule.Node
	publisher  Publisher
	namespaces keys.Namespaces
	instance   string

	// Logger gets what is out of the ordinary. Default: slog.Default().
	Logger *slog.Logger
	// SweepInterval bounds the lateness when every event is lost. Default: 1s.
	SweepInterval time.Duration
	// Lease is how long a claim outlives this process. Default: 10s.
	Lease time.Duration
	// Self is what it says of itself with its heartbeats. Default: the instance id alone.
	Self schedule.Self
	// Counts returns what it has counted since its start, for its heartbeats, or nil to say nothing this time. By default it says
	// nothing.
	Counts func() *schedule.Counts

	// OnAudit is called after each complete audit.
	OnAudit func(reason string, seen schedule.Observed, took time.Duration)
	// OnScanned is called after each sweep with what it counted.
	OnScanned func(schedule.DueScan)
	// OnClaimed is called after each claim that changed something.
	OnClaimed func(schedule.ClaimResult)
	// OnReplanned is called with how many occurrences of timers that repeat were planned again.
	OnReplanned func(n int)

	busy       atomic.Bool
	auditing   atomic.Bool
	mu         sync.Mutex
	queue      wakeQueue
	health     health
	rank, of   int // among the timerds
	incomplete bool
	beyond     bool // there are keys of timers that nobody follows
	moving     bool // what was last said about slots that are moving; maintain's
	woken      chan struct{}
	claimedAt  time.Time // when something was claimed last; fire's
	expected   int       // how many firings the next claim may bring; fire's
	gaps       chan string
	gapsNoted  int                       // since the start
	lastGap    string                    // its reason
	gapAt      schedule.Millis           // when it was noted
	counted    []schedule.NamespaceCount // by the last audit of all timers, if it reached all; audit's
	recorded   time.Time                 // when a report of an audit was left last; audit's
	unfollowed chan struct{}             // beyond has become true
	replanned  time.Time                 // when it was looked last for what a clock that was ahead has armed; maintain's
	taken      chan struct{}             // partitions were taken over from another server
}

// New returns a reconciler for the timers on a node; those of the namespaces it adopts. instance tells this process
// from all others that serve the same schedule.
func New(node *schedule.Node, p Publisher, namespaces keys.Namespaces, instance string) *Reconciler {
	return &Reconciler{
		node: node, publisher: p, namespaces: namespaces, instance: instance,
		Logger:        slog.Default(),
		SweepInterval: time.Second,
		Lease:         10 * time.Second,
		Self:          schedule.Self{Instance: instance},
		Counts:        func() *schedule.Counts { return nil },
		OnAudit:       func(string, schedule.Observed, time.Duration) {},
		OnScanned:     func(schedule.DueScan) {},
		OnClaimed:     func(schedule.ClaimResult) {},
		OnReplanned:   func(int) {},
		queue:         newWakeQueue(),
		health:        newHealth(),
		of:            1,
		woken:         make(chan struct{}, 1),
		gaps:          make(chan string, 1),
		unfollowed:    make(chan struct{}, 1),
		taken:         make(chan struct{}, 1),
	}
}

// newBackoff returns the back-off of a loop.
func (r *Reconciler) newBackoff() backoff.Backoff {
	return backoff.Backoff{Policy: backoff.Policy{First: firstPause, Longest: longestPause}, Logger: r.Logger}
}

// Busy tells whether more is due than has been claimed so far, and nothing else is being done than claiming it.
func (r *Reconciler) Busy() bool { return r.busy.Load() && !r.auditing.Load() }

// Wake says that a timer of a partition is due at a time; schedule.AtOnce says that something is owed, and
// schedule.Nothing has no effect. Nor has a partition of another node. It never blocks.
func (r *Reconciler) Wake(p keys.Partition, due schedule.Millis) {
	if due < 0 || !r.node.Owns(p) {
		return
	}
	r.mu.Lock()
	earlier := r.learn(p, due)
	r.mu.Unlock()
	if earlier {
		signal(r.woken)
	}
}

// learn notes a due time. It tells whether fire is to look at the queue again. r.mu is held.
func (r *Reconciler) learn(p keys.Partition, due schedule.Millis) bool {
	if !r.queue.learn(p, due) {
		return false
	}
	at := due
	if due > schedule.AtOnce {
		at = at.Add(time.Duration(r.standby(p)) * standbyStep)
	}
	return r.queue.plan(p, at)
}

// standby returns how many other timerds are to claim from a partition before this
// one. Each is first for its share of the partitions. r.mu is held.
func (r *Reconciler) standby(p keys.Partition) int {
	if p == keys.Single {
		return r.rank
	}
	return (r.rank + p.Slot()) % r.of
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// TookOver says that partitions have come from another server: they are looked at as soon as possible. It never blocks.
func (r *Reconciler) TookOver() {
	signal(r.taken)
	r.askForAudit(reasonTakenOver)
}

// Gap asks for an audit, because events may have been missed. It never blocks;
// gaps that come while an audit is waiting to begin are answered by it.
func (r *Reconciler) Gap(reason string) {
	r.mu.Lock()
	r.gapsNoted++
	r.lastGap, r.gapAt = reason, r.node.Now()
	r.mu.Unlock()
	r.askForAudit(reason)
}

// askForAudit has everything audited as soon as the audit under way is over.
func (r *Reconciler) askForAudit(reason string) {
	select {
	case r.gaps <- reason:
	default:
	}
}

// SetComplete says whether the events that adoption needs flow. While they do not, an audit follows every sweep.
func (r *Reconciler) SetComplete(complete bool) {
	r.mu.Lock()
	r.incomplete = !complete
	r.mu.Unlock()
	if !complete {
		r.Gap("events incomplete")
	}
}

// SetBeyond says whether there are timers whose keys are not followed, though events flow. While there are, the timers
// are audited every minute, or as often as a tenth of the time allows.
func (r *Reconciler) SetBeyond(beyond bool) {
	r.mu.Lock()
	r.beyond = beyond
	r.mu.Unlock()
	if beyond {
		signal(r.unfollowed)
	}
}

// Run fires timers until ctx ends. What fails is tried again.
func (r *Reconciler) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { r.fire(ctx) })
	wg.Go(func() { r.maintain(ctx) })
	wg.Go(func() { r.beat(ctx) })
	wg.Go(func() { r.audit(ctx) })
	wg.Wait()
}
