// Package load puts the workloads on the systems and measures what comes of them.
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

// Bench is what the workloads share.
type Bench struct {
	Timerd string        // path of the program
	Grace  time.Duration // how long after the last due time a firing is waited for
	Scale  Scale
	Log    io.Writer // what it is doing, a line each
}

// Scale is how much is done where the workload's name does not say it.
type Scale struct {
	Setting  time.Duration // how long each way of setting timers is measured
	Idle     time.Duration // how long an idle timerd is watched
	Storm    int           // timers that are cancelled or rescheduled
	Retried  int           // timers that fail until their last attempt
	IdleFull int           // pending timers of the idle timerd that has some
	Millions int           // pending timers of the workload that has the most
	Spread   Shape         // what is measured beside these, due over a while
	Spike    Shape         // likewise, due at one instant
	Rates    []int         // firings per second, for each of which the cores are counted
	Rated    time.Duration // how long timers are due at each of these rates
	Rate     int           // firings per second of an installation
	AtOnce   int           // timers of it that are due at one instant
	Waiting  int           // timers of it that are pending while it is idle
	Crowd    int           // timers or retries of each kind that a hostile tenant has, at least where they are small
}

// pendingFirst is the number of the first timer that only waits.
const pendingFirst = 1_000_000_000

// pendingDelay is how far in the future those are due: beyond the end of the run.
const pendingDelay = 24 * time.Hour

// preloadChunk is how many timers are made at a time, to bound this program's own memory.
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

// start starts a system. The caller closes it, also after an error of its own.
func (b *Bench) start(ctx context.Context, spec peer.Spec, system peer.System) (*running, error) {
	r, err := rig.New(b.Timerd)
	if err != nil {
		return nil, err
	}
	x := &running{Rig: r, System: system, collector: newCollector(), spec: spec, next: 1, armRate: float64(spec.ArmRate)}
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

// preload sets n timers that are due after the run.
func (x *running) preload(ctx context.Context, n int) error {
	due := time.Now().Add(pendingDelay)
	for done := 0; done < n; {
		timers := make([]firing.Timer, 0, preloadChunk)
		for len(timers) < preloadChunk && done < n {
			timers = append(timers, firing.Timer{N: pendingFirst + x.pending, Due: due.Add(time.Duration(x.pending) * time.Millisecond).Truncate(time.Millisecond)})
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

// addForeign sets n keys with a TTL that are no timers, as a cache would.
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

// measurement returns one of this system, to be filled in.
func (x *running) measurement(workload string, round int) result.Measurement {
	return result.Measurement{System: x.spec.Name, Workload: workload, Round: round, Pending: int(x.pending), Foreign: x.foreign}
}

// usage returns what was used since before, and the most memory that is resident.
func usage(before, after map[string]rig.Usage, peak map[string]int64) map[string]result.Usage {
	used := make(map[string]result.Usage)
	for role, u := range after {
		used[role] = result.Usage{CPU: (u.CPU - before[role].CPU).Seconds(), RSS: max(u.RSS, peak[role])}
	}
	return used
}
