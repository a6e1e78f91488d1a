package load

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/timerd-io/timerd/bench/internal/firing"
	"github.com/timerd-io/timerd/bench/internal/peer"
	"github.com/timerd-io/timerd/bench/internal/result"
)

// stormLead is the delay of a storm's timers. The time for setting them comes on top.
const stormLead = 20 * time.Second

// stormSpread is the time over which the new due times of rescheduled timers are spread.
const stormSpread = 10 * time.Second

// storm is a way of cancelling and rescheduling.
type storm struct {
	name       string
	cancel     func(ctx context.Context, pipe redis.Pipeliner, t firing.Timer)
	reschedule func(ctx context.Context, pipe redis.Pipeliner, t firing.Timer)
}

func stormsOf() []storm {
	return []storm{
		{
			"timer_cancel, timer_set",
			func(ctx context.Context, pipe redis.Pipeliner, t firing.Timer) {
				pipe.Do(ctx, "FCALL", "timer_cancel", 1, t.Key())
			},
			func(ctx context.Context, pipe redis.Pipeliner, t firing.Timer) {
				pipe.Do(ctx, "FCALL", "timer_set", 1, t.Key(), t.Payload(), "PXAT", t.Due.UnixMilli())
			},
		},
		{
			"DEL, PEXPIREAT",
			func(ctx context.Context, pipe redis.Pipeliner, t firing.Timer) { pipe.Del(ctx, t.Key()) },
			func(ctx context.Context, pipe redis.Pipeliner, t firing.Timer) {
				pipe.PExpireAt(ctx, t.Key(), t.Due)
			},
		},
	}
}

// Storms cancels half of many timers and reschedules the others, as fast as two connections with pipelines allow. It
// checks that cancelled timers do not fire and that rescheduled ones fire at their new times.
func (b *Bench) Storms(ctx context.Context, round int, save func(result.Measurement) error) (err error) {
	x, err := b.startTimerd(ctx, &peer.Timerd{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	for _, s := range stormsOf() {
		m := x.measurement("storm: "+s.name, round)
		if err := b.storm(ctx, x, s, &m); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		b.logf("storm of %s: %.0f cancelled/s, %.0f rescheduled/s; %d undelivered, %d early, %.0f fired although "+
			"cancelled", s.name,
			m.Values[ValueCancelled], m.Values[ValueMoved], m.Firings.Undelivered(), m.Firings.Early,
			m.Values[ValueFiredDead])
		if err := save(m); err != nil {
			return err
		}
	}
	return nil
}

func (b *Bench) storm(ctx context.Context, x *timerdRun, s storm, m *result.Measurement) error {
	n := b.Scale.Storm
	first := x.number(n)
	half := n / 2
	timers := make([]firing.Timer, n)
	lead := stormLead + time.Duration(float64(n)/x.armRate*float64(time.Second))
	due := time.Now().Add(lead).Truncate(time.Millisecond)
	for i := range timers {
		timers[i] = firing.Timer{N: first + int64(i), Due: due}
	}
	if err := x.Arm(ctx, timers); err != nil {
		return err
	}
	before, err := x.Usage()
	if err != nil {
		return err
	}
	cancelled, moved := timers[:half], timers[half:]
	dues := make([]time.Time, len(moved))
	for i := range moved {
		moved[i].Due = due.Add(time.Duration(i) * stormSpread / time.Duration(len(moved))).Truncate(
			time.Millisecond).Add(time.Second)
		dues[i] = moved[i].Due
	}
	x.begin(first, n) // cancelled timers too: none may fire

	began := time.Now()
	if err := pipelines(ctx, x.RedisClient, cancelled, s.cancel); err != nil {
		return err
	}
	cancelTook := time.Since(began)
	began = time.Now()
	if err := pipelines(ctx, x.RedisClient, moved, s.reschedule); err != nil {
		return err
	}
	moveTook := time.Since(began)
	if time.Now().After(due) {
		return fmt.Errorf("%w: the storm took until after the timers were due", errLate)
	}
	if err := b.awaitFired(ctx, x, half, dues[len(dues)-1]); err != nil {
		return err
	}
	after, err := x.Usage()
	if err != nil {
		return err
	}
	var kept []firing.Firing
	dead := 0
	for _, f := range x.got() {
		if f.N < first+int64(half) {
			dead++
			continue
		}
		kept = append(kept, f)
	}
	m.Firings = evaluate(first+int64(half), dues, kept)
	m.Usage = usage(before, after, nil)
	m.Values = map[string]float64{
		ValueCancelled: float64(half) / cancelTook.Seconds(), ValueMoved: float64(n-half) / moveTook.Seconds(),
		ValueFiredDead: float64(dead)}
	return nil
}

// awaitFired waits until the timers that were not cancelled have fired, or the grace is over. Then it waits for a while
// in case cancelled timers fire.
func (b *Bench) awaitFired(ctx context.Context, x *timerdRun, half int, last time.Time) error {
	for deadline := last.Add(b.Grace); time.Now().Before(deadline); {
		if err := sleepUntil(ctx, time.Now().Add(linger)); err != nil {
			return err
		}
		x.mu.Lock()
		done := true
		for _, seen := range x.seen[half:] {
			done = done && seen
		}
		x.mu.Unlock()
		if done {
			break
		}
	}
	return sleepUntil(ctx, time.Now().Add(linger))
}

// pipelines calls f for each timer, in pipelines on two connections.
func pipelines(ctx context.Context, rdb *redis.Client, timers []firing.Timer,
	f func(context.Context, redis.Pipeliner, firing.Timer)) error {
	const size, connections = 100, 2
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(connections)
	for len(timers) > 0 {
		part := timers[:min(size, len(timers))]
		timers = timers[len(part):]
		group.Go(func() error {
			_, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
				for _, t := range part {
					f(ctx, pipe, t)
				}
				return nil
			})
			return err
		})
	}
	return group.Wait()
}

// Retries measures timers whose consumer, the Go client, fails each attempt but the last: the lateness of each attempt
// by the due time in its event.
func (b *Bench) Retries(ctx context.Context, round int, save func(result.Measurement) error) (err error) {
	x, err := b.startTimerd(ctx, &peer.Timerd{Retries: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	const spreadOver = 10 * time.Second
	n := b.Scale.Retried
	shape := Shape{Name: "retries", Timers: n, Spread: spreadOver}
	timers := spread(x.number(n), shape, time.Now().Add(2*quietTime+time.Duration(
		float64(n)/x.armRate*float64(time.Second))))
	first := peer.AttemptN(timers[0].N, 1)
	x.begin(first, n*peer.Attempts)
	if err := x.Arm(ctx, timers); err != nil {
		return err
	}
	if time.Now().After(timers[0].Due) {
		return errLate
	}
	before, err := x.Usage()
	if err != nil {
		return err
	}
	if err := x.wait(ctx, timers[n-1].Due.Add(b.Grace)); err != nil {
		return err
	}
	if err := sleepUntil(ctx, time.Now().Add(linger)); err != nil {
		return err
	}
	after, err := x.Usage()
	if err != nil {
		return err
	}
	for attempt := 1; attempt <= peer.Attempts; attempt++ {
		dues := make([]time.Time, n)
		for i, t := range timers {
			dues[i] = t.Due
		}
		var firings []firing.Firing
		for _, f := range x.got() {
			if i := f.N - first; i%peer.Attempts == int64(attempt-1) {
				f.N = i / peer.Attempts
				firings = append(firings, f)
			}
		}
		m := x.measurement(fmt.Sprintf("retries: attempt %d", attempt), round)
		m.Firings = evaluate(0, dues, firings)
		if attempt == peer.Attempts {
			m.Usage = usage(before, after, nil)
		}
		b.logf("retries, attempt %d: p50 %.1f ms, p99 %.1f ms, %d undelivered, %d early", attempt,
			m.Firings.Consumed.P50, m.Firings.Consumed.P99, m.Firings.Undelivered(), m.Firings.Early)
		if err := save(m); err != nil {
			return err
		}
	}
	return nil
}
