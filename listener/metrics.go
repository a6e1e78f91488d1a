package listener

import (
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Agenda receives the times for claims from the partitions: a reconciler.Reconciler. Its methods may be called
// concurrently, and must return quickly.
type Agenda interface {
	// Wake passes the due time of the partition's first timer, or schedule.AtOnce or Nothing. It is called after hints
	// of the partition reached the schedule, and after a client has set the partition's first timer, which every server
	// of a cluster announces.
	Wake(p keys.Partition, due schedule.Millis)
	// Claimed passes the time of a claim from the partition by any timerd of a cluster, and the time of the next claim,
	// or schedule.Nothing. If only one timerd listens, its claims are not announced.
	Claimed(p keys.Partition, at, next schedule.Millis)
}

type noAgenda struct{}

func (noAgenda) Wake(keys.Partition, schedule.Millis)                     {}
func (noAgenda) Claimed(keys.Partition, schedule.Millis, schedule.Millis) {}

// Metrics counts the work of a Listener. Its methods may be called concurrently, and must return quickly.
type Metrics interface {
	// Observed counts a batch of hints that reached the schedule.
	Observed(seen schedule.Observed)
	// Set counts a timer that the function library announces. In a cluster the library announces none by key.
	Set()
	// Refused counts a key of the namespaces that is too long.
	Refused(key string, err error)
}

type noMetrics struct{}

func (noMetrics) Observed(schedule.Observed) {}
func (noMetrics) Set()                       {}
func (noMetrics) Refused(string, error)      {}
