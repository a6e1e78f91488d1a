// Package load runs the workloads on the systems and measures the results.
package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/bench/internal/firing"
	"github.com/timerd-io/timerd/bench/internal/peer"
	"github.com/timerd-io/timerd/bench/internal/result"
	"github.com/timerd-io/timerd/bench/internal/rig"
)

// Bench is the common state of the workloads.
type Bench struct {
	Timerd string        // path of the program
	Grace  time.Duration // wait for firings after the last due time
	Scale  Scale
	Log    io.Writer // progress, a line each
}

// Scale has the sizes of the workloads whose names do not have a size.
type Scale struct {
	Setting  time.Duration // duration of each way of setting timers
	Idle     time.Duration // duration of the measurement of an idle timerd
	Storm    int           // cancelled or rescheduled timers
	Retried  int           // timers that fail until their last attempt
	IdleFull int           // pending timers of an idle timerd that has pending ones
	Millions int           // pending timers of the workload with the most
	Spread   Shape         // measured beside Millions, with due times spread over a while
	Spike    Shape         // measured beside Millions, with one due time for all timers
	Rates    []int         // firings per second of the workloads that count cores
	Rated    time.Duration // duration of each of these rates
	Rate     int           // firings per second of an installation
	AtOnce   int           // timers due at one instant, of an installation
	Waiting  int           // pending timers of an idle installation
	Guarded  int           // timers due at one instant; guards stop half of them
	Crowd    int           // timers or retries of a hostile tenant, for each kind of small ones
}

// pendingFirst is the number of the first timer that stays pending.
const pendingFirst = 1_000_000_000

// pendingDelay is the delay of timers that stay pending: beyond the end of the run.
const pendingDelay = 24 * time.Hour

// preloadChunk limits the timers made at a time, to limit this program's memory.
const preloadChunk = 50_000

func (b *Bench) logf(format string, args ...any) {
	fmt.Fprintf(b.Log, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

// running is a started system.
type running struct {
	*rig.Rig
	peer.System
	*collector

	spec    peer.Spec
	next    int64 // number of the next timer
	pending int64
	foreign int
	armRate float64 // timers per second, as measured
}

// start starts a system. The caller closes it, also after an error.
func (b *Bench) start(ctx context.Context, spec peer.Spec, system peer.System) (*running, error) {
	r, err := rig.New(b.Timerd)
	if err != nil {
		return nil, err
	}
	x := &running{Rig: r, System: system, collector: newCollector(), spec: spec, next: 1,
		armRate: float64(spec.ArmRate)}
	if err := x.System.Start(ctx, r, x.fired); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", spec.Name, err), r.Close())
	}
	return x, nil
}

// number returns the number of the first of n new timers.
func (x *running) number(n int) int64 {
	first := x.next
	x.next += int64(n)
	return first
}

// preload sets n timers that are due after the end of the run.
func (x *running) preload(ctx context.Context, n int) error {
	due := time.Now().Add(pendingDelay)
	for done := 0; done < n; {
		timers := make([]firing.Timer, 0, preloadChunk)
		for len(timers) < preloadChunk && done < n {
			timers = append(timers, firing.Timer{N: pendingFirst + x.pending,
				Due: due.Add(time.Duration(x.pending) * time.Millisecond).Truncate(time.Millisecond)})
			x.pending++
			done++
		}
		if err := x.Arm(ctx, timers); err != nil {
			return fmt.Errorf("set %d pending timers: %w", n, err)
		}
		if err := x.Died(); err != nil {
			return err
		}
	}
	return nil
}

// addForeign sets n keys with a TTL that are not timers, as a cache would.
func (x *running) addForeign(ctx context.Context, n int) error {
	const batch = 1000
	for done := 0; done < n; done += batch {
		if _, err := x.RedisClient.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i := range min(batch, n-done) {
				pipe.Set(ctx, fmt.Sprintf("cache:%d", done+i), "0123456789", pendingDelay)
			}
			return nil
		}); err != nil {
			return fmt.Errorf("set %d foreign keys: %w", n, err)
		}
	}
	x.foreign += n
	return nil
}

// measurement returns a measurement of this system without results.
func (x *running) measurement(workload string, round int) result.Measurement {
	return result.Measurement{System: x.spec.Name, Workload: workload, Round: round, Pending: int(x.pending),
		Foreign: x.foreign}
}

// usage returns the usage since before, and the highest sample of resident memory.
func usage(before, after map[string]rig.Usage, peak map[string]int64) map[string]result.Usage {
	used := make(map[string]result.Usage)
	for role, u := range after {
		used[role] = result.Usage{CPU: (u.CPU - before[role].CPU).Seconds(), RSS: max(u.RSS, peak[role])}
	}
	return used
}
