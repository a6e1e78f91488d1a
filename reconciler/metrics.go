package reconciler

import (
	"time"

	"github.com/timerd-io/timerd/schedule"
)

// Events are the keyspace events of a node. A timerd hears them unless enough other timerds do. Both methods are called
// once a sweep.
type Events interface {
	// Hears reports whether this timerd hears all events of the node, with a proof within [Believed].
	Hears() bool
	// Hear starts or stops hearing the events.
	Hear(hear bool)
}

type allEvents struct{}

func (allEvents) Hears() bool { return true }

func (allEvents) Hear(bool) {}

// Metrics counts the work of a Reconciler and its [Coverage]. Its methods may be called concurrently, and must return
// quickly.
type Metrics interface {
	// Audited counts a complete audit.
	Audited(reason string, seen schedule.Observed, took time.Duration)
	// Swept takes the counts of a sweep.
	Swept(found schedule.DueScan)
	// Claimed counts a claim that changed something.
	Claimed(claimed *schedule.ClaimResult)
	// Vanished counts timers or records that had vanished from the schedule. It counts them once they are restored, or
	// cannot be restored.
	Vanished(missing int64)
	// Replanned counts occurrences of repeating timers that were planned again.
	Replanned(n int)
	// AccountDiffers takes the difference in timers of the node's accounts, if this timerd compares them.
	AccountDiffers(timers int64)
	// Unanswered counts a time without an answer to heartbeats. The time was so long that other timerds took this one
	// for silent.
	Unanswered(silent time.Duration)
	// Gap counts a gap in the keyspace events.
	Gap(reason string)
	// Complete notes whether the events that adoption needs arrive.
	Complete(complete bool)
}

type noMetrics struct{}

func (noMetrics) Audited(string, schedule.Observed, time.Duration) {}
func (noMetrics) Swept(schedule.DueScan)                           {}
func (noMetrics) Claimed(*schedule.ClaimResult)                    {}
func (noMetrics) Vanished(int64)                                   {}
func (noMetrics) Replanned(int)                                    {}
func (noMetrics) AccountDiffers(int64)                             {}
func (noMetrics) Unanswered(time.Duration)                         {}
func (noMetrics) Gap(string)                                       {}
func (noMetrics) Complete(bool)                                    {}
