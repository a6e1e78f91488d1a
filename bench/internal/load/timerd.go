package load

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/timerd-io/timerd/bench/internal/firing"
	"github.com/timerd-io/timerd/bench/internal/peer"
	"github.com/timerd-io/timerd/bench/internal/result"
	"github.com/timerd-io/timerd/client"
)

// timerdRun is a started timerd.
type timerdRun struct {
	*running
	timerd *peer.Timerd
}

func (b *Bench) startTimerd(ctx context.Context, t *peer.Timerd) (*timerdRun, error) {
	if t.Instances == 0 {
		t.Instances = 1
	}
	spec, err := peer.Named("timerd")
	if err != nil {
		return nil, err
	}
	x, err := b.start(ctx, spec, t)
	if err != nil {
		return nil, err
	}
	return &timerdRun{running: x, timerd: t}, nil
}

// Names of values; the report knows them too.
const (
	ValueRate      = "timersPerS"
	ValueUnadopted = "unadopted"
	ValueCatchUp   = "catchUpMs"
	ValueBytes     = "redisBytesPerTimer"
	ValueRSS       = "rssBytesPerTimer"
	ValueCommands  = "redisCommandsPerS"
	ValueCancelled = "cancelledPerS"
	ValueMoved     = "rescheduledPerS"
	ValueFiredDead = "cancelledFired"
)

// way is a way of setting timers. set sets a number of timers, at most size.
type way struct {
	name    string
	plain   bool
	size    int
	workers int
	set     func(ctx context.Context, rdb *redis.Client, timers []firing.Timer) error
}

func ways() []way {
	const pipeline, connections = 100, 32
	plain := func(ctx context.Context, rdb *redis.Client, timers []firing.Timer) error {
		return rdb.Do(ctx, "SET", timers[0].Key(), timers[0].Payload(), "PXAT", timers[0].Due.UnixMilli()).Err()
	}
	set := func(ctx context.Context, rdb *redis.Client, timers []firing.Timer) error {
		return rdb.Do(ctx, "FCALL", "timer_set", 1, timers[0].Key(), timers[0].Payload(), "PXAT",
			timers[0].Due.UnixMilli()).Err()
	}
	piped := func(each func(pipe redis.Pipeliner, t firing.Timer)) func(context.Context, *redis.Client,
		[]firing.Timer) error {
		return func(ctx context.Context, rdb *redis.Client, timers []firing.Timer) error {
			_, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
				for _, t := range timers {
					each(pipe, t)
				}
				return nil
			})
			return err
		}
	}
	one := func(ctx context.Context, rdb *redis.Client, timers []firing.Timer) error {
		_, err := client.New(rdb).Set(ctx, timers[0].Key(), timers[0].Payload(), client.At(timers[0].Due))
		return err
	}
	many := func(ctx context.Context, rdb *redis.Client, timers []firing.Timer) error {
		settings := make([]client.Setting, len(timers))
		for i, t := range timers {
			settings[i] = client.Setting{Key: t.Key(), Payload: t.Payload(), When: client.At(t.Due)}
		}
		_, err := client.New(rdb).SetMany(ctx, settings)
		return err
	}
	return []way{
		{"SET, one by one", true, 1, 1, plain},
		{"SET, 32 connections", true, 1, connections, plain},
		{"SET, pipelines of 100", true, pipeline, 1, piped(func(pipe redis.Pipeliner, t firing.Timer) {
			pipe.Do(context.Background(), "SET", t.Key(), t.Payload(), "PXAT", t.Due.UnixMilli())
		})},
		{"timer_set, one by one", false, 1, 1, set},
		{"timer_set, 32 connections", false, 1, connections, set},
		{"timer_set, pipelines of 100", false, pipeline, 1, piped(func(pipe redis.Pipeliner, t firing.Timer) {
			pipe.Do(context.Background(), "FCALL", "timer_set", 1, t.Key(), t.Payload(), "PXAT", t.Due.UnixMilli())
		})},
		{"Go client Set, one by one", false, 1, 1, one},
		{"Go client SetMany of 100", false, pipeline, 1, many},
	}
}

// Setting measures the rate of setting timers in each way: with a timerd, and for plain SETs also without one. For
// plain SETs it also reports the number of timers not adopted when setting stopped, and the time until the last one was
// adopted.
func (b *Bench) Setting(ctx context.Context, round int, save func(result.Measurement) error) (err error) {
	x, err := b.startTimerd(ctx, &peer.Timerd{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	for _, w := range ways() {
		before, _, err := x.timerd.Counts(ctx)
		if err != nil {
			return err
		}
		used, err := x.Usage()
		if err != nil {
			return err
		}
		n, took, err := b.set(ctx, x.running, w)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		pending, _, err := x.timerd.Counts(ctx)
		if err != nil {
			return err
		}
		m := result.Measurement{System: x.spec.Name, Workload: setting + w.name, Round: round,
			Values: map[string]float64{ValueRate: float64(n) / took.Seconds()}}
		if w.plain {
			m.Values[ValueUnadopted] = float64(before + n - pending)
			catchUp, err := x.timerd.AwaitAdopted(ctx, before+n, b.Grace)
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			m.Values[ValueCatchUp] = ms(catchUp)
		}
		after, err := x.Usage()
		if err != nil {
			return err
		}
		m.Usage = usage(used, after, nil)
		b.logf("%s: %.0f timers/s, %.0f not yet adopted at the end", w.name, m.Values[ValueRate],
			m.Values[ValueUnadopted])
		if err := save(m); err != nil {
			return err
		}
	}
	return b.settingAlone(ctx, round, save)
}

// setting is the prefix of the names of the workloads that Setting measures.
const setting = "setting: "

// settingAlone measures plain SETs without any timerd.
func (b *Bench) settingAlone(ctx context.Context, round int, save func(result.Measurement) error) (err error) {
	spec, err := peer.Named("events")
	if err != nil {
		return err
	}
	x, err := b.start(ctx, spec, spec.New(spec))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	for _, w := range ways() {
		if !w.plain {
			continue
		}
		n, took, err := b.set(ctx, x, w)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		m := result.Measurement{System: spec.Name, Workload: setting + w.name, Round: round,
			Values: map[string]float64{ValueRate: float64(n) / took.Seconds()}}
		if err := save(m); err != nil {
			return err
		}
	}
	return nil
}

// set sets timers for the duration that the scale gives, and returns their number and the time it took.
func (b *Bench) set(ctx context.Context, x *running, w way) (n int64, took time.Duration, err error) {
	due := time.Now().Add(pendingDelay).Truncate(time.Millisecond)
	var count atomic.Int64
	number := x.pending // none of these fires in the run
	began := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for range w.workers {
		group.Go(func() error {
			timers := make([]firing.Timer, w.size)
			for time.Since(began) < b.Scale.Setting {
				last := count.Add(int64(w.size))
				for i := range timers {
					timers[i] = firing.Timer{N: pendingFirst + number + last - int64(w.size) + int64(i), Due: due}
				}
				if err := w.set(ctx, x.RedisClient, timers); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = group.Wait()
	x.pending += count.Load()
	return count.Load(), time.Since(began), err
}

// Idle measures the usage of an idle timerd, first without and then with pending timers.
func (b *Bench) Idle(ctx context.Context, round int, save func(result.Measurement) error) (err error) {
	x, err := b.startTimerd(ctx, &peer.Timerd{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	for _, pending := range []int{0, b.Scale.IdleFull} {
		if err := x.preload(ctx, pending); err != nil {
			return err
		}
		if err := sleepUntil(ctx, time.Now().Add(aftermath)); err != nil {
			return err
		}
		m := x.measurement("idle", round)
		if m.Values, m.Usage, err = b.watch(ctx, x.running); err != nil {
			return err
		}
		b.logf("idle with %d pending: %.1f Redis commands/s, timerd uses %.2f %% of a core", pending,
			m.Values[ValueCommands], 100*m.Usage["timerd"].CPU/b.Scale.Idle.Seconds())
		if err := save(m); err != nil {
			return err
		}
	}
	return nil
}

// ValueSeconds is the duration of the measurement of an idle timerd.
const ValueSeconds = "seconds"

func (b *Bench) watch(ctx context.Context, x *running) (map[string]float64, map[string]result.Usage, error) {
	commands, err := stat(ctx, x.RedisClient, "stats", "total_commands_processed")
	if err != nil {
		return nil, nil, err
	}
	before, err := x.Usage()
	if err != nil {
		return nil, nil, err
	}
	began := time.Now()
	if err := sleepUntil(ctx, began.Add(b.Scale.Idle)); err != nil {
		return nil, nil, err
	}
	after, err := x.Usage()
	took := time.Since(began)
	if err != nil {
		return nil, nil, err
	}
	since, err := stat(ctx, x.RedisClient, "stats", "total_commands_processed")
	if err != nil {
		return nil, nil, err
	}
	own := 1.0 // the first INFO counts itself
	values := map[string]float64{ValueCommands: (since - commands - own) / took.Seconds(), ValueSeconds: took.Seconds()}
	return values, usage(before, after, nil), nil
}

// stat returns a numeric field of Redis's INFO.
func stat(ctx context.Context, rdb *redis.Client, section, name string) (float64, error) {
	value, err := info(ctx, rdb, section, name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(value, 64)
}

// info returns a field of Redis's INFO.
func info(ctx context.Context, rdb *redis.Client, section, name string) (string, error) {
	text, err := rdb.Info(ctx, section).Result()
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("no %s in Redis's INFO %s", name, section)
}
