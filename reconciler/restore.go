package reconciler

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// reasonVanished is the reason of an audit after timers have vanished from the schedule.
	reasonVanished = "timers vanished"
	// tornSweeps is the number of consecutive sweeps that must find a timer torn. No step leaves half of a timer
	// behind, but another timerd may be restoring it.
	tornSweeps = 2
	// restoreEach is the number of sweeps between tries to restore timers that could not be restored.
	restoreEach = 30
)

// Restorer restores timers that are missing from one half of the index.
type Restorer interface {
	Restore(ctx context.Context, p keys.Partition, lease time.Duration) (schedule.Restored, error)
}

// restorer restores timers if somebody has removed one half of them from the index. It also requests an audit, because
// keys have the rest of the data.
type restorer struct {
	node     Restorer
	agenda   *agenda
	coverage *Coverage
	lease    time.Duration
	log      *slog.Logger
	metrics  Metrics

	missing map[keys.Partition]int // number of consecutive sweeps; used by noteTorn
	torn    chan []schedule.Torn

	mu      sync.Mutex
	unknown map[keys.Partition]int64 // number of records without a timer in the last call
}

// noteTorn takes the torn partitions of a sweep. It is for one goroutine.
func (r *restorer) noteTorn(found []schedule.Torn) {
	missing := make(map[keys.Partition]int, len(found))
	var torn []schedule.Torn
	for _, t := range found {
		if r.unknownIn(t.Partition) == t.Missing {
			continue
		}
		n := r.missing[t.Partition] + 1
		missing[t.Partition] = n
		if n == tornSweeps || n%restoreEach == 0 {
			torn = append(torn, t)
		}
	}
	r.missing = missing
	if len(torn) == 0 {
		return
	}
	select {
	case r.torn <- torn:
	default: // tried again in restoreEach sweeps
	}
}

// unknownIn returns the number of a partition's records without a timer.
func (r *restorer) unknownIn(p keys.Partition) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unknown[p]
}

// setUnknown notes the number of a partition's records without a timer.
func (r *restorer) setUnknown(p keys.Partition, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unknown == nil {
		r.unknown = map[keys.Partition]int64{}
	}
	r.unknown[p] = n
}

// run restores until ctx ends.
func (r *restorer) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case torn := <-r.torn:
			_, _ = r.restore(ctx, torn) // it logs failures
		}
	}
}

// restore restores torn partitions, and logs that. A partition with nothing to restore was not torn. After an error
// restore goes on with the next partition, and returns the last error.
func (r *restorer) restore(ctx context.Context, torn []schedule.Torn) (all schedule.Restored, failed error) {
	missing := int64(0)
	for _, t := range torn {
		restored, err := r.node.Restore(ctx, t.Partition, r.lease)
		if err != nil {
			failed = err
			missing += t.Missing
			continue
		}
		r.setUnknown(t.Partition, restored.Unknown)
		if changed := restored.Timers + restored.Bare + restored.Dropped; changed > 0 {
			missing += max(t.Missing-restored.Unknown, changed)
			r.agenda.wake(t.Partition, restored.Due)
		}
		all.Add(restored)
	}
	if ctx.Err() != nil || missing == 0 {
		return all, failed
	}
	r.metrics.Vanished(missing)
	r.log.Error("timers had vanished from the schedule: somebody has deleted keys of timerd, or their members",
		"missing", missing, "restored", all.Timers, "without_payload", all.Bare, "dropped", all.Dropped, "err", failed)
	r.coverage.ask(reasonVanished)
	return all, failed
}
