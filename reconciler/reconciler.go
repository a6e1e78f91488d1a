// Package reconciler makes timers fire on time. It sleeps until the first one
// is due, claims what is due in batches and hands it on for publishing. What
// any lost event or crash left behind, its regular sweeps and audits recover.
package reconciler

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Intervals and limits that are not worth a setting.
const (
	minBackoff   = 50 * time.Millisecond
	maxBackoff   = 2 * time.Second
	beatsToDeath = 4                    // a timerd is dead after this many sweeps without a sign of life
	standbyStep  = 5 * time.Millisecond // how much later each rank wakes than the one before it
	longestSleep = time.Hour
	claimGrace   = time.Second // for a claim under way when the process stops
	never        = math.MaxInt64
	maxClockAge  = 10 * time.Second // after which any newer reading of the clock is better
)

// Schedule is the part of the schedule that the reconciler works on.
type Schedule interface {
	Claim(ctx context.Context, p keys.Partition, lease time.Duration, known, since int64) (schedule.Claimed, error)
	Observe(ctx context.Context, hints []schedule.Hint, since, heard int64) (schedule.Observed, error)
	AuditPage(ctx context.Context, p keys.Partition, cursor uint64, count int, mayEvict bool) (uint64, schedule.Observed, error)
	MayEvict(ctx context.Context) (bool, error)
	EnsureLibrary(ctx context.Context) (bool, error)
	Beat(ctx context.Context, p keys.Partition, instance string, ttl time.Duration) (rank, of int, err error)
	Retire(ctx context.Context, p keys.Partition, instance string) error
	Counts(ctx context.Context, p keys.Partition) (pending, firing int64, err error)
}

// Publisher takes claimed firings over.
type Publisher interface {
	// Wait returns when firings can be published, or an error when ctx ends.
	// Nothing is claimed before it returns.
	Wait(ctx context.Context) error
	// Publish takes firings over: once ctx has ended, as many as there is room for,
	// and gives the others back.
	Publish(ctx context.Context, firings []schedule.Firing) error
}

// Reconciler serves one partition of the schedule. Set its fields before Run.
type Reconciler struct {
	schedule   Schedule
	publisher  Publisher
	rdb        redis.UniversalClient
	namespaces keys.Namespaces
	instance   string
	partition  keys.Partition

	// Logger gets what is out of the ordinary. Default: slog.Default().
	Logger *slog.Logger
	// SweepInterval bounds the lateness when every event is lost. Default: 1s.
	SweepInterval time.Duration
	// Lease is how long a claim outlives this process. Default: 10s.
	Lease time.Duration
	// AuditInterval is how often everything is audited though no gap was
	// noticed. Default: 10m. While events are incomplete it is SweepInterval.
	AuditInterval time.Duration

	// OnAudit is called after each complete audit.
	OnAudit func(reason string, seen schedule.Observed, took time.Duration)
	// OnCounts is called after each sweep with how many timers are pending and
	// how many firings owed or claimed.
	OnCounts func(pending, firing int64)
	// OnClaimed is called after each claim that changed something.
	OnClaimed func(schedule.Claimed)

	since      atomic.Int64
	mu         sync.Mutex
	known      int64 // unix ms of the first due time that is known; never for none
	rank       int
	incomplete bool
	clock      clock
	woken      chan struct{}
	gaps       chan string
}

// New returns a reconciler for the timers of the namespaces. instance tells
// this process from all others that serve the same schedule.
func New(s Schedule, p Publisher, rdb redis.UniversalClient, namespaces keys.Namespaces, instance string) *Reconciler {
	r := &Reconciler{
		schedule: s, publisher: p, rdb: rdb, namespaces: namespaces, instance: instance,
		partition:     keys.Single,
		Logger:        slog.Default(),
		SweepInterval: time.Second,
		Lease:         10 * time.Second,
		AuditInterval: 10 * time.Minute,
		OnAudit:       func(string, schedule.Observed, time.Duration) {},
		OnCounts:      func(int64, int64) {},
		OnClaimed:     func(schedule.Claimed) {},
		known:         never,
		woken:         make(chan struct{}, 1),
		gaps:          make(chan string, 1),
	}
	r.since.Store(schedule.NoEvents)
	return r
}

// SetSince says from when on, in unix ms on the Redis server's clock, every
// keyspace event has been heard; schedule.NoEvents, as at first, says that they
// are not.
func (r *Reconciler) SetSince(since int64) { r.since.Store(since) }

// Wake says that a timer is due at the given unix ms on the Redis server's
// clock; 0 says that something is owed now, and a negative value nothing. It
// never blocks.
func (r *Reconciler) Wake(due int64) {
	if due < 0 {
		return
	}
	r.mu.Lock()
	earlier := due < r.known
	if earlier {
		r.known = due
	}
	r.mu.Unlock()
	if earlier {
		select {
		case r.woken <- struct{}{}:
		default:
		}
	}
}

// Gap asks for an audit, because events may have been missed. It never blocks;
// gaps that come while an audit is waiting to begin are answered by it.
func (r *Reconciler) Gap(reason string) {
	select {
	case r.gaps <- reason:
	default:
	}
}

// SetComplete says whether the events that adoption needs flow. While they do
// not, an audit follows every sweep.
func (r *Reconciler) SetComplete(complete bool) {
	r.mu.Lock()
	r.incomplete = !complete
	r.mu.Unlock()
	if !complete {
		r.Gap("events incomplete")
	}
}

// Run fires timers until ctx ends. What fails is tried again.
func (r *Reconciler) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { r.fire(ctx) })
	wg.Go(func() { r.maintain(ctx) })
	wg.Go(func() { r.audit(ctx) })
	wg.Wait()
}

// fire claims at each due time that is known and at each sweep.
func (r *Reconciler) fire(ctx context.Context) {
	sweep := time.NewTicker(r.SweepInterval)
	defer sweep.Stop()
	deadline := time.NewTimer(0) // the first claim recovers what a downtime missed
	defer deadline.Stop()
	backoff := minBackoff
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.woken:
			deadline.Reset(r.untilDue())
			continue
		case <-deadline.C:
		case <-sweep.C:
		}
		err := r.drain(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			backoff = minBackoff
			deadline.Reset(r.untilDue())
			continue
		}
		if backoff == minBackoff {
			r.Logger.Warn("cannot fire timers; trying again", "err", err, "delay", backoff)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, maxBackoff)
		deadline.Reset(0)
	}
}

// untilDue returns how long to sleep before the next claim.
func (r *Reconciler) untilDue() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == never {
		return longestSleep
	}
	return min(r.clock.until(r.known), longestSleep) + time.Duration(r.rank)*standbyStep
}

// drain claims and publishes batches until nothing is due.
func (r *Reconciler) drain(ctx context.Context) error {
	for {
		if err := r.publisher.Wait(ctx); err != nil {
			return err
		}
		r.mu.Lock()
		known := r.known
		r.known = never
		r.mu.Unlock()
		claiming, done := carryThrough(ctx)
		c, err := r.schedule.Claim(claiming, r.partition, r.Lease, known, r.since.Load())
		received := time.Now()
		done()
		if err != nil {
			r.Wake(known)
			return err
		}
		r.mu.Lock()
		r.clock.read(c.At, c.Sent, received)
		r.mu.Unlock()
		r.Wake(c.Next)
		if len(c.Firings) > 0 {
			if err := r.publisher.Publish(ctx, c.Firings); err != nil {
				return err
			}
		}
		for _, err := range c.Corrupt {
			r.Logger.Error("removed from the schedule what is no timer", "err", err)
		}
		if len(c.Firings) > 0 || c.Rescheduled > 0 || c.Cancelled > 0 {
			r.OnClaimed(c)
		}
		if idle := c.Next < 0 || c.Next > c.At.UnixMilli(); idle && !c.Untidy {
			return nil
		}
	}
}

// carryThrough returns a context that goes on for a while after ctx has ended. A
// claim that is given up in the middle keeps its timers from firing until the
// lease is over.
func carryThrough(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(claimGrace, cancel) })
	return longer, func() {
		stop()
		cancel()
	}
}

// maintain does at every sweep what keeps the schedule in order.
func (r *Reconciler) maintain(ctx context.Context) {
	sweep := time.NewTicker(r.SweepInterval)
	defer sweep.Stop()
	failing := false
	for {
		err := r.sweep(ctx)
		if ctx.Err() != nil {
			break
		}
		if err != nil && !failing {
			r.Logger.Warn("sweep failed; trying again at the next", "err", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
		case <-sweep.C:
			continue
		}
		break
	}
	// The others need not wait for this one's silence to tell.
	retire, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := r.schedule.Retire(retire, r.partition, r.instance); err != nil {
		r.Logger.Warn("could not retire; the others close ranks when this timerd stays silent", "err", err)
	}
}

func (r *Reconciler) sweep(ctx context.Context) error {
	rank, _, err := r.schedule.Beat(ctx, r.partition, r.instance, beatsToDeath*r.SweepInterval)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.rank = rank
	r.mu.Unlock()
	loaded, err := r.schedule.EnsureLibrary(ctx)
	if err != nil {
		return err
	}
	if loaded {
		r.Logger.Warn("the function library was gone; loaded it again", "library", schedule.LibraryName)
	}
	pending, firing, err := r.schedule.Counts(ctx, r.partition)
	if err != nil {
		return err
	}
	r.OnCounts(pending, firing)
	return nil
}
