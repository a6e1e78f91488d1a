package reconciler

import (
	"sync"
	"time"

	"github.com/timerd-io/timerd/schedule"
)

const (
	// auditInterval is the interval of full audits without a gap.
	auditInterval = 10 * time.Minute
	// auditShare is the largest part of the time for audits that replace events, or that follow slots moving one after
	// the other.
	auditShare = 10
	// unfollowedInterval is the interval of audits of the timers alone, while the keys of some timers are not followed.
	unfollowedInterval = time.Minute

	// The reasons of scheduled audits. Audits for reasonUnfollowed are of the timers alone.
	reasonRegular    = "regular"
	reasonUnfollowed = "keys not followed"
	// reasonTakenOver is the reason of an audit of partitions that came from another server of a cluster.
	reasonTakenOver = "slots moved"
	// reasonSetBack is the reason of an audit after the clock was set back. It ends waits that are too long.
	reasonSetBack = "clock set back"
)

// Coverage records how much the schedule can rely on the events of a node. The listener keeps it up to date, and audits
// cover the rest. Its methods may be called concurrently, and never block. Set its fields before the first call.
type Coverage struct {
	// Metrics counts the gaps. Default: nothing is counted.
	Metrics Metrics

	now        func() schedule.Millis
	asked      chan string   // the reason of a requested full audit
	unfollowed chan struct{} // beyond has become true
	audited    chan struct{}

	mu                 sync.Mutex
	incomplete, beyond bool
	gaps               int             // since the start
	lastGap            string          // the reason of the last gap
	gapAt              schedule.Millis // its time
}

func newCoverage(now func() schedule.Millis) *Coverage {
	return &Coverage{
		Metrics: noMetrics{},
		now:     now, asked: make(chan string, 1), unfollowed: make(chan struct{}, 1), audited: make(chan struct{}, 1),
	}
}

// Gap requests an audit, because events may have been missed. A waiting audit covers further gaps too.
func (c *Coverage) Gap(reason string) {
	c.Metrics.Gap(reason)
	c.note(reason)
}

// note notes a gap.
func (c *Coverage) note(reason string) {
	c.mu.Lock()
	c.gaps++
	c.lastGap, c.gapAt = reason, c.now()
	c.mu.Unlock()
	c.ask(reason)
}

// ask requests a full audit, after the present one.
func (c *Coverage) ask(reason string) {
	select {
	case c.asked <- reason:
	default:
	}
}

// SetComplete sets whether the events that adoption needs arrive. While they do not, an audit follows every sweep.
func (c *Coverage) SetComplete(complete bool) {
	c.Metrics.Complete(complete)
	c.mu.Lock()
	c.incomplete = !complete
	c.mu.Unlock()
	if !complete {
		c.note("events incomplete")
	}
}

// SetBeyond sets whether timers exist whose keys are not followed although events arrive. While there are such timers,
// audits run every minute, or less often so that they take at most a tenth of the time.
func (c *Coverage) SetBeyond(beyond bool) {
	c.mu.Lock()
	c.beyond = beyond
	c.mu.Unlock()
	if beyond {
		signal(c.unfollowed)
	}
}

// Audited receives after audits, which may have forgotten apps. It is for one receiver.
func (c *Coverage) Audited() <-chan struct{} { return c.audited }

// untilAudit returns the wait before the next audit, and its reason. took is the duration of the last audit, since is
// the age of the last full audit, and sweeps is the interval of sweeps.
func (c *Coverage) untilAudit(took, since, sweeps time.Duration) (wait time.Duration, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	rest := (auditShare - 1) * took
	switch left := auditInterval - since; {
	case c.incomplete:
		return max(sweeps, rest), reasonRegular
	case c.beyond && left > unfollowedInterval:
		return max(unfollowedInterval, rest), reasonUnfollowed
	default:
		return max(left, rest), reasonRegular
	}
}

// report adds the gaps to the report of an audit.
func (c *Coverage) report(r *schedule.AuditReport) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Gaps = c.gaps; c.gaps > 0 {
		r.LastGap, r.GapAt = c.lastGap, c.gapAt.Time()
	}
}
