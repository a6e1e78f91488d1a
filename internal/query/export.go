package query

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// ExportedTimer is a timer with the rest of its record.
type ExportedTimer struct {
	Timer
	schedule.Exported
}

// Export calls yield for the unclaimed timers of a namespace, by due time, until it returns an error. It calls claimed
// for the other timers: these are claimed, or given back, and their events may be published. It returns the number of
// unclaimed timers. Its error wraps ErrCut if too many are owed or firing, and a *MovingError if slots were moving.
// Timers that are set or fire meanwhile may be left out, or come twice if they are moved.
func Export(
	ctx context.Context, s *schedule.Schedule, n keys.Namespace, yield func(ExportedTimer) error, claimed func(Timer),
) (count int, err error) {
	var failed error
	cut := false
	err = Pages(ctx, s, Query{Namespace: n}, func(p Page) bool {
		cut = cut || p.Cut
		var serials []int64
		if serials, failed = readSerials(ctx, s, p.Timers); failed != nil {
			return false
		}
		for i, t := range p.Timers {
			if t.State == StateFiring {
				claimed(t)
				continue
			}
			e := t.Record.Export(schedule.MillisOf(t.Due), t.Beside, serials[i])
			if failed = yield(ExportedTimer{t, e}); failed != nil {
				return false
			}
			count++
		}
		return true
	})
	if cut {
		err = errors.Join(err, ErrCut)
	}
	return count, errors.Join(failed, err)
}

// readSerials returns for each repeating timer the serial of its key's repetition, and 0 for all others.
func readSerials(ctx context.Context, s *schedule.Schedule, timers []Timer) ([]int64, error) {
	serials := make([]int64, len(timers))
	replies := make(map[int]*redis.FloatCmd)
	pipe := s.Client().Pipeline()
	for i, t := range timers {
		if t.Record.Occurrence.Repeats() {
			name := t.Key.String()
			replies[i] = pipe.ZScore(ctx, s.Partition(name).Repeat(), name)
		}
	}
	if len(replies) == 0 {
		return serials, nil
	}
	_, _ = pipe.Exec(ctx) // each reply has its own error
	for i, reply := range replies {
		serial, err := reply.Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return nil, fmt.Errorf("schedule: read the repetition of %q: %w", timers[i].Key, err)
		}
		serials[i] = int64(serial)
	}
	return serials, nil
}
