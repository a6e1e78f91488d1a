package reconciler

import (
	"context"
	"log/slog"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// reasonVanished is the reason of an audit after timers have vanished from the schedule.
	reasonVanished = "timers vanished"
	// lasting is in how many sweeps in a row something must be missing. No step leaves half of a timer behind, but what vanished may
	// be put back by somebody else.
	lasting = 2
	// restoreEach is in how many sweeps what cannot be put back is tried once more.
	restoreEach = 30
)

// Restorer puts back what the index has lost.
type Restorer interface {
	Restore(ctx context.Context, p keys.Partition, lease time.Duration) (schedule.Restored, error)
}

// restorer puts back timers that somebody has removed from half of the index, and asks for an audit: the keys have the rest.
type restorer struct {
	node       Restorer
	agenda     *agenda
	coverage   *Coverage
	lease      time.Duration
	log        *slog.Logger
	onVanished func(missing int64)

	missing map[keys.Partition]int // in how many sweeps in a row; for note
	torn    chan []schedule.Torn
}

// note takes in what a sweep has found. It is for one goroutine.
func (r *restorer) note(found []schedule.Torn) {
	missing := make(map[keys.Partition]int, len(found))
	var torn []schedule.Torn
	for _, t := range found {
		n := r.missing[t.Partition] + 1
		missing[t.Partition] = n
		if n == lasting || n%restoreEach == 0 {
			torn = append(torn, t)
		}
	}
	r.missing = missing
	if len(torn) == 0 {
		return
	}
	select {
	case r.torn <- torn:
	default: // in restoreEach sweeps
	}
}

// run restores until ctx ends.
func (r *restorer) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case torn := <-r.torn:
			r.restore(ctx, torn)
		}
	}
}

// restore puts back what is missing in some partitions.
func (r *restorer) restore(ctx context.Context, torn []schedule.Torn) {
	missing := int64(0)
	for _, t := range torn {
		missing += t.Missing
	}
	r.onVanished(missing)
	var all schedule.Restored
	var failed error
	for _, t := range torn {
		restored, err := r.node.Restore(ctx, t.Partition, r.lease)
		if err != nil {
			failed = err
			continue
		}
		all.Timers, all.Bare = all.Timers+restored.Timers, all.Bare+restored.Bare
		r.agenda.wake(t.Partition, restored.Due)
	}
	if ctx.Err() != nil {
		return
	}
	r.log.Error("timers had vanished from the schedule: somebody has deleted keys of timerd, or members of them",
		"missing", missing, "restored", all.Timers, "without_payload", all.Bare, "err", failed)
	r.coverage.ask(reasonVanished)
}
