package listener

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/schedule"
)

// The pauses between sessions, and between tries to pass hints to the schedule.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = 5 * time.Second
)

// lastIntake bounds the calls that pass the remaining hints to the schedule at the end.
const lastIntake = time.Second

// Observer takes hints into the schedule.
type Observer interface {
	Observe(ctx context.Context, hints []schedule.Hint, heard time.Time) (schedule.Observed, error)
}

// intake passes hints to the schedule, each time all hints that came during the previous call. It keeps hints that
// Redis refuses, and tries them again.
type intake struct {
	observer Observer
	hints    *buffer
	health   *health
	coverage Coverage
	agenda   Agenda
	metrics  Metrics
	log      *slog.Logger
}

// run passes hints on until ctx ends. It then tries once to pass on the rest, because no other timerd may have these
// hints. So calls to the schedule outlast ctx by lastIntake.
func (i *intake) run(ctx context.Context) {
	work, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(lastIntake, end) })()

	for ctx.Err() == nil {
		i.handOver(ctx, work, i.hints.wait(ctx))
	}
	i.hints.flush()
	hints, _ := i.hints.collect()
	i.handOver(ctx, work, hints)
	i.handOver(ctx, work, i.hints.retry())
	if hints = i.hints.retry(); len(hints) > 0 {
		i.log.Warn("ended while the slots of keys are moving; an audit follows at the next start", "waiting",
			len(hints))
	}
}

// handOver passes hints on until each of them is in the schedule or back in the buffer. After the end of ctx it gives
// up at the first failure. work is the context of the calls.
func (i *intake) handOver(ctx, work context.Context, hints []heardHint) {
	for len(hints) > 0 {
		batch, heard, rest := nextBatch(hints)
		hints = rest
		if batch = i.hints.holdBack(batch, heard); len(batch) > 0 && !i.observe(ctx, work, batch, heard) {
			return
		}
	}
}

// spread is the longest time between two expired events in one batch. The schedule takes each of them to be as old as
// the oldest, and an event that is too old proves nothing. The ages of other hints do not matter.
const spread = 500 * time.Millisecond

// nextBatch selects hints for one call among the first hints, at least one. It returns the batch, a lower bound of the
// times of its expired events, and the rest. The hints of each key stay in order. hints is overwritten.
func nextBatch(hints []heardHint) (batch []schedule.Hint, heard time.Time, rest []heardHint) {
	some := hints[:min(len(hints), schedule.MaxHints)]
	var first time.Time // the age of the first expired event
	var others []heardHint
	left := map[string]bool{} // keys of the others
	for _, h := range some {
		isExpired := h.Kind == schedule.Expired
		if isExpired && first.IsZero() {
			first, heard = h.heard, h.heard
		}
		if left[h.Key] || isExpired && h.heard.Sub(first).Abs() > spread/2 {
			others, left[h.Key] = append(others, h), true
			continue
		}
		if isExpired && h.heard.Before(heard) {
			heard = h.heard
		}
		batch = append(batch, h.Hint)
	}
	if first.IsZero() {
		heard = hints[0].heard
	}
	rest = hints[len(batch):]
	copy(rest, others)
	return batch, heard, rest
}

// observe passes a batch on. It returns false if it gives up.
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
