// Package reconciler makes timers fire on time. It sleeps until the first one
// is due, claims what is due in batches and hands it on for publishing. What
// any lost event or crash left behind, its regular sweeps and audits recover.
package reconciler

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Intervals and limits that are not worth a setting.
const (
	minBackoff   = 50 * time.Millisecond
	maxBackoff   = 2 * time.Second
	beatsToDeath = 4                    // a timerd is dead after this many sweeps without a sign of life
	standbyStep  = 5 * time.Millisecond // how much later each rank wakes than the one before it
	// gather is how long after the answer to a claim the next one is made while timers
	// are due all the time, so that each brings several: at some thousand a second 5 or
	// 6. Longer saves no CPU time any more, shorter costs some in timerd and in Redis.
	gather = 1200 * time.Microsecond
	// fine is how long before a claim timers give way to a precise sleep: they are up
	// to a millisecond late in a process that has nothing else to do.
	fine         = 1200 * time.Microsecond
	longestSleep = time.Hour
	claimGrace   = time.Second // for a claim under way when the process stops
	never        = math.MaxInt64
	maxClockAge  = 10 * time.Second // after which any newer reading of the clock is better
	// claimBatch is how many partitions one round trip claims from: what they bring
	// may exceed the publisher's window, which takes the rest as it gets room.
	claimBatch = 32
	// movingPause is the pause before the next claim from a partition that is moving
	// from one server of a cluster to another.
	movingPause = 100 * time.Millisecond
	// horizon is how far beyond the next sweep a survey looks.
	horizon = 2 * time.Second
)

// Schedule is the part of the schedule that the reconciler works on: that on one
// server.
type Schedule interface {
	Serves(p keys.Partition) bool
	ClaimEach(ctx context.Context, wants []schedule.Want, lease time.Duration) []schedule.Claimed
	Survey(ctx context.Context, within, lease time.Duration) (schedule.Surveyed, error)
	Observe(ctx context.Context, hints []schedule.Hint, since, heard int64) (schedule.Observed, error)
	AuditPage(ctx context.Context, p keys.Partition, cursor uint64, count int, mayEvict bool) (uint64, schedule.Observed, error)
	MayEvict(ctx context.Context) (bool, error)
	EnsureLibrary(ctx context.Context) (bool, error)
	Beat(ctx context.Context, instance string, ttl time.Duration) (rank, of int, err error)
	Retire(ctx context.Context, instance string) error
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

// Reconciler serves the part of the schedule that is on one Redis server: one
// partition, or in a cluster those of its slots. Set its fields before Run.
type Reconciler struct {
	schedule   Schedule
	publisher  Publisher
	rdb        redis.UniversalClient
	namespaces keys.Namespaces
	instance   string

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
	busy       atomic.Bool
	auditing   atomic.Bool
	mu         sync.Mutex
	agenda     agenda
	rank, of   int // among the timerds
	incomplete bool
	clock      clock
	moving     bool // what was last said about slots that are moving
	woken      chan struct{}
	drained    time.Time // when something was claimed last; fire's
	gaps       chan string
	taken      chan struct{} // partitions were taken over from another server
}

// New returns a reconciler for the timers of the namespaces on the server that rdb
// talks to. instance tells this process from all others that serve the same
// schedule.
func New(s Schedule, p Publisher, rdb redis.UniversalClient, namespaces keys.Namespaces, instance string) *Reconciler {
	r := &Reconciler{
		schedule: s, publisher: p, rdb: rdb, namespaces: namespaces, instance: instance,
		Logger:        slog.Default(),
		SweepInterval: time.Second,
		Lease:         10 * time.Second,
		AuditInterval: 10 * time.Minute,
		OnAudit:       func(string, schedule.Observed, time.Duration) {},
		OnCounts:      func(int64, int64) {},
		OnClaimed:     func(schedule.Claimed) {},
		agenda:        newAgenda(),
		of:            1,
		woken:         make(chan struct{}, 1),
		gaps:          make(chan string, 1),
		taken:         make(chan struct{}, 1),
	}
	r.since.Store(schedule.NoEvents)
	return r
}

// SetSince says from when on, in unix ms on the Redis server's clock, every
// keyspace event has been heard; schedule.NoEvents, as at first, says that they
// are not.
func (r *Reconciler) SetSince(since int64) { r.since.Store(since) }

// Busy tells whether more is due than has been claimed so far, and nothing else is
// being done than claiming it.
func (r *Reconciler) Busy() bool { return r.busy.Load() && !r.auditing.Load() }

// Wake says that a timer of a partition is due at the given unix ms on the Redis
// server's clock; 0 says that something is owed now, and a negative value nothing.
// A partition of another server is none of its business. It never blocks.
func (r *Reconciler) Wake(p keys.Partition, due int64) {
	if due < 0 || !r.schedule.Serves(p) {
		return
	}
	r.mu.Lock()
	earlier := r.learn(p, due)
	r.mu.Unlock()
	if earlier {
		signal(r.woken)
	}
}

// learn notes a due time. It tells whether fire is to look at the agenda again. r.mu
// is held.
func (r *Reconciler) learn(p keys.Partition, due int64) bool {
	if !r.agenda.learn(p, due) {
		return false
	}
	at := due
	if due > 0 {
		at += int64(r.standby(p)) * standbyStep.Milliseconds()
	}
	return r.agenda.plan(p, at)
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

// TookOver says that partitions have come from another server: they are looked at
// as soon as possible. It never blocks.
func (r *Reconciler) TookOver() {
	signal(r.taken)
	r.Gap(reasonTakenOver)
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

// fire claims at each due time that is known and whenever a sweep has found
// something.
func (r *Reconciler) fire(ctx context.Context) {
	deadline := time.NewTimer(longestSleep)
	defer deadline.Stop()
	precise, err := newNapper()
	if err != nil {
		r.Logger.Warn("no precise timer: firings may be a millisecond later", "err", err)
	}
	defer func() { _ = precise.close() }()
	backoff := minBackoff
	for ctx.Err() == nil {
		if wait := r.untilClaim(); wait > fine {
			deadline.Reset(wait - fine)
			select {
			case <-ctx.Done():
			case <-r.woken:
			case <-deadline.C:
			}
			continue
		} else if wait > 0 {
			precise.nap(wait)
			continue
		}
		err := r.drain(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			backoff = minBackoff
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
	}
}

// untilClaim returns how long to sleep before the next claim: until something is due,
// but while there always is, until some of it has gathered.
func (r *Reconciler) untilClaim() time.Duration {
	return max(r.untilDue(), gather-time.Since(r.drained))
}

// untilDue returns how long to sleep before the next claim.
func (r *Reconciler) untilDue() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.until(r.agenda.next())
}

// until returns how long it is until a time on the agenda. r.mu is held.
func (r *Reconciler) until(at int64) time.Duration {
	if at == never {
		return longestSleep
	}
	return min(r.clock.until(at), longestSleep)
}

// due takes partitions off the agenda whose time has come.
func (r *Reconciler) due() []schedule.Want {
	r.mu.Lock()
	defer r.mu.Unlock()
	var wants []schedule.Want
	for len(wants) < claimBatch && r.until(r.agenda.next()) <= 0 {
		p, known := r.agenda.take()
		if r.schedule.Serves(p) {
			wants = append(wants, schedule.Want{Partition: p, Known: known, Since: r.since.Load()})
		}
	}
	return wants
}

// drain claims and publishes batches until nothing is due. While one is being
// published the next is claimed.
func (r *Reconciler) drain(ctx context.Context) error {
	defer r.busy.Store(false)
	var publishing errgroup.Group
	publishing.SetLimit(1)
	more := false
	for {
		r.busy.Store(false) // NATS may be away for long
		if err := r.publisher.Wait(ctx); err != nil {
			return errors.Join(err, publishing.Wait())
		}
		r.busy.Store(more)
		var firings []schedule.Firing
		var err error
		firings, more, err = r.claim(ctx)
		if len(firings) > 0 {
			r.drained = time.Now()
		}
		if err != nil || !more {
			return errors.Join(err, publishing.Wait(), r.publish(ctx, firings))
		}
		publishing.Go(func() error { return r.publish(ctx, firings) })
	}
}

// publish hands firings over, if there are any.
func (r *Reconciler) publish(ctx context.Context, firings []schedule.Firing) error {
	if len(firings) == 0 {
		return nil
	}
	return r.publisher.Publish(ctx, firings)
}

// claim claims once from each partition where something is due. It returns what it
// has claimed, also with an error, and whether there was more.
func (r *Reconciler) claim(ctx context.Context) (firings []schedule.Firing, more bool, err error) {
	wants := r.due()
	more = len(wants) == claimBatch
	claiming, done := carryThrough(ctx)
	defer done()
	all := r.schedule.ClaimEach(claiming, wants, r.Lease)
	received := time.Now()
	for i, c := range all {
		if c.Err != nil {
			err = errors.Join(err, r.notClaimed(wants[i], c.Err))
			continue
		}
		more = r.claimed(c, received) || more
		firings = append(firings, c.Firings...)
	}
	return firings, more, err
}

// claimed takes in what a claim told, and returns whether there was more to claim.
func (r *Reconciler) claimed(c schedule.Claimed, received time.Time) (more bool) {
	now := c.At.UnixMilli()
	more = c.Untidy || c.Next >= 0 && c.Next <= now
	r.mu.Lock()
	r.clock.read(c.At, c.Sent, received)
	if c.Next >= 0 {
		r.learn(c.Partition, c.Next)
	}
	if more {
		r.agenda.plan(c.Partition, now)
	}
	r.mu.Unlock()
	for _, err := range c.Corrupt {
		r.Logger.Error("removed from the schedule what is no timer", "err", err)
	}
	if len(c.Firings) > 0 || c.Rescheduled > 0 || c.Cancelled > 0 {
		r.OnClaimed(c)
	}
	return more
}

// notClaimed puts a partition back on the agenda. It returns an error unless the
// partition is just moving.
func (r *Reconciler) notClaimed(want schedule.Want, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if want.Known != never {
		r.agenda.learn(want.Partition, want.Known)
	}
	if schedule.IsMoving(err) {
		r.agenda.plan(want.Partition, r.clock.now()+movingPause.Milliseconds())
		return nil
	}
	r.agenda.plan(want.Partition, 0)
	return err
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
		case <-r.taken:
			continue
		case <-sweep.C:
			continue
		}
		break
	}
	// The others need not wait for this one's silence to tell.
	retire, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := r.schedule.Retire(retire, r.instance); err != nil {
		r.Logger.Warn("could not retire; the others close ranks when this timerd stays silent", "err", err)
	}
}

func (r *Reconciler) sweep(ctx context.Context) error {
	return errors.Join(r.survey(ctx), r.beat(ctx), r.ensureLibrary(ctx))
}

// survey has everything claimed that is due, and learns what is due before the
// sweep after the next.
func (r *Reconciler) survey(ctx context.Context) error {
	found, err := r.schedule.Survey(ctx, 2*r.SweepInterval+horizon, r.Lease)
	if err != nil {
		return err
	}
	r.mu.Lock()
	for _, h := range found.Heads {
		if h.Due > 0 && r.clock.until(h.Due) > 0 {
			r.learn(h.Partition, h.Due)
		} else {
			r.agenda.plan(h.Partition, int64(r.standby(h.Partition)))
		}
	}
	r.mu.Unlock()
	signal(r.woken)
	r.OnCounts(found.Pending, found.Firing)
	switch moving := len(found.Moving) > 0; {
	case moving && !r.moving:
		r.Logger.Info("timers wait: their slots are moving from one server to another, or the cluster is down",
			"slots", len(found.Moving), "first", found.Moving[0].Slot())
		r.moving = true
	case !moving && r.moving:
		r.Logger.Info("no timers wait any more")
		r.moving = false
	}
	return nil
}

func (r *Reconciler) beat(ctx context.Context) error {
	rank, of, err := r.schedule.Beat(ctx, r.instance, beatsToDeath*r.SweepInterval)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rank, r.of = rank, max(of, 1)
	return nil
}

func (r *Reconciler) ensureLibrary(ctx context.Context) error {
	loaded, err := r.schedule.EnsureLibrary(ctx)
	if err != nil {
		return err
	}
	if loaded {
		r.Logger.Warn("the function library was gone; loaded it again", "library", schedule.LibraryName)
	}
	return nil
}
