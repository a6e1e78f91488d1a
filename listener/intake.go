package listener

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/schedule"
)

// The pauses between sessions, and between tries to have hints taken in.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = 5 * time.Second
)

// lastIntake bounds the intake of the remaining hints at the end.
const lastIntake = time.Second

// Observer takes hints into the schedule.
type Observer interface {
	Observe(ctx context.Context, hints []schedule.Hint, heard time.Time) (schedule.Observed, error)
}

// intake hands the hints to the schedule, each time all that came during the previous call. It keeps hints that Redis
// refuses, and tries them again.
type intake struct {
	observer Observer
	hints    *buffer
	health   *health
	coverage Coverage
	agenda   Agenda
	metrics  Metrics
	log      *slog.Logger
}

// run hands hints over until ctx ends. It then hands the rest over once, because nobody else will hear it; so calls to
// the schedule outlast ctx by lastIntake.
func (i *intake) run(ctx context.Context) {
	work, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(lastIntake, end) })()

	for ctx.Err() == nil {
		hints, heard := i.hints.wait(ctx)
		i.handOver(ctx, work, hints, heard)
	}
	i.hints.flush()
	hints, heard, _ := i.hints.collect()
	i.handOver(ctx, work, hints, heard)
	hints, heard = i.hints.retry()
	i.handOver(ctx, work, hints, heard)
	if hints, _ = i.hints.retry(); len(hints) > 0 {
		i.log.Warn("ended while the slots of keys are moving; an audit follows at the next start", "waiting", len(hints))
	}
}

// handOver hands hints over until the schedule or the buffer has taken each of them. It gives up after a failure once
// ctx has ended. work is the context of the calls.
func (i *intake) handOver(ctx, work context.Context, hints []schedule.Hint, heard time.Time) {
	for batch := range slices.Chunk(hints, schedule.MaxHints) {
		if batch = i.hints.holdBack(batch, heard); len(batch) > 0 && !i.observe(ctx, work, batch, heard) {
			return
		}
	}
}

// observe hands a batch over. It returns false after giving up.
func (i *intake) observe(ctx, work context.Context, hints []schedule.Hint, heard time.Time) bool {
	retry := backoff.Backoff{Policy: backoff.Policy{First: firstPause, Longest: longestPause}, Logger: i.log}
	for {
		asked := time.Now()
		seen, err := i.observer.Observe(work, hints, heard)
		if moving, ok := errors.AsType[*schedule.MovingError](err); ok {
			if !i.hints.putOff(moving.Hints, heard) {
				i.coverage.Gap("slots moved for too long")
			}
			err = nil
		}
		i.health.noteIntake(err)
		if err == nil {
			for _, h := range seen.Heads {
				i.agenda.Wake(h.Partition, h.Due)
			}
			i.metrics.Observed(seen)
			overtaken := i.hints.await(seen.Left, asked)
			return len(overtaken) == 0 || i.observe(ctx, work, overtaken, asked)
		}
		if ctx.Err() != nil {
			i.log.Warn("ended with unprocessed keyspace events; an audit follows at the next start",
				"err", err, "waiting", len(hints))
			return false
		}
		backoff.Sleep(ctx, retry.Fail("keyspace events wait: Redis cannot process them", err, "waiting", len(hints)))
	}
}
