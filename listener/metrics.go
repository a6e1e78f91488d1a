package listener

import (
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Agenda learns when to claim from a partition: a reconciler.Reconciler. Its methods may be called concurrently, and
// must return quickly.
type Agenda interface {
	// Wake gives the due time of the partition's first timer, or schedule.AtOnce or Nothing: after hints of the
	// partition were taken in, and when a client has set its first timer, which every server of a cluster announces.
	Wake(p keys.Partition, due schedule.Millis)
	// Claimed gives the time of a claim that some timerd of a cluster made from the partition, and of the next one to
	// make there, or schedule.Nothing. A claim of the only timerd that listens is not announced.
	Claimed(p keys.Partition, at, next schedule.Millis)
}

type noAgenda struct{}

func (noAgenda) Wake(keys.Partition, schedule.Millis)                     {}
func (noAgenda) Claimed(keys.Partition, schedule.Millis, schedule.Millis) {}

// Metrics counts the work of a Listener. Its methods may be called concurrently, and must return quickly.
type Metrics interface {
	// Observed counts a batch of hints that was taken in.
	Observed(seen schedule.Observed)
	// Set counts a timer that the function library announces. In a cluster it announces none by key.
	Set()
	// Refused counts a key of the namespaces that is too long.
	Refused(key string, err error)
}

type noMetrics struct{}

func (noMetrics) Observed(schedule.Observed) {}
func (noMetrics) Set()                       {}
func (noMetrics) Refused(string, error)      {}
