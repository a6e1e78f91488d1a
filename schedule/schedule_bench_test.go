package schedule_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/schedule"
)

// batches are the numbers of timers that one call handles in the benchmarks.
func batches() []int { return []int{1, 5, schedule.MaxClaim} }

// eachBatch runs a benchmark for each size of batch on a Redis of its own, and reports timers per second beside
// the time of a batch.
func eachBatch(b *testing.B, run func(b *testing.B, x *index, n int)) {
	b.Helper()
	for _, n := range batches() {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			x := newIndex(b)
			b.ReportAllocs()
			run(b, x, n)
			b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "timers/s")
		})
	}
}

// setDue sets n timers with 200-byte payloads, and with a guard each if guard is not "", and returns once they are due.
func (x *index) setDue(n int, guard string) {
	x.t.Helper()
	var last *redis.Cmd
	if _, err := x.rdb.Pipelined(x.t.Context(), func(pipe redis.Pipeliner) error {
		for i := range n {
			// Lua keeps equal texts once, and finds those slowly that differ little.
			payload := strings.Repeat(fmt.Sprintf("%010d", i*7919%1_000_003), 20)
			call := []any{"FCALL", "timer_set", 1, fmt.Sprintf("app1:trans:notice:%d", i), payload, "PX", 1}
			if guard != "" {
				call = append(call, "UNLESS", fmt.Sprintf("%s:%d", guard, i))
			}
			last = pipe.Do(x.t.Context(), call...)
		}
		return nil
	}); err != nil {
		x.t.Fatal(err)
	}
	due, err := last.Int64()
	if err != nil {
		x.t.Fatal(err)
	}
	testenv.Eventually(x.t, time.Minute, func() bool { return x.redisNow() > due }, "timers that are due")
}

// take claims n timers that are due.
func (x *index) take(n int) []schedule.Firing {
	x.t.Helper()
	c := x.claimFor(lease)
	if len(c.Firings) != n {
		x.t.Fatalf("claimed %d timers, want %d", len(c.Firings), n)
	}
	return c.Firings
}

func BenchmarkClaim(b *testing.B) {
	eachBatch(b, func(b *testing.B, x *index, n int) { x.claimEach(b, n, "") })
}

// claimEach claims n timers, with a guard each if guard is not "", in each round of a benchmark.
func (x *index) claimEach(b *testing.B, n int, guard string) {
	b.Helper()
	spent := 0.0 // by Redis, in µs
	for b.Loop() {
		b.StopTimer()
		x.setDue(n, guard)
		before := x.usec("fcall")
		b.StartTimer()
		firings := x.take(n)
		b.StopTimer()
		spent += x.usec("fcall") - before
		if err := x.Settle(b.Context(), schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(spent/float64(b.N*n), "redis-µs/timer")
}

// BenchmarkClaimGuarded claims timers without guards, with their own, and with those of a rule. Every second guard says
// no.
func BenchmarkClaimGuarded(b *testing.B) {
	for _, c := range []struct{ name, rules, guard string }{
		{"none", "", ""}, {"others", "shop:order=unless paid:%id", ""}, {"own", "", "paid"},
		{"rule", "app1:trans=unless paid:%id", ""},
	} {
		b.Run(c.name, func(b *testing.B) {
			eachBatch(b, func(b *testing.B, x *index, n int) {
				x.GuardBy(rules(b, c.rules))
				for i := 0; i < n; i += 2 {
					x.do("SET", fmt.Sprintf("paid:%d", i), "")
				}
				x.claimEach(b, n, c.guard)
			})
		})
	}
}

func BenchmarkSettle(b *testing.B) {
	eachBatch(b, func(b *testing.B, x *index, n int) {
		for b.Loop() {
			b.StopTimer()
			x.setDue(n, "")
			firings := x.take(n)
			b.StartTimer()
			if err := x.Settle(b.Context(), schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkObserve takes in the hints of plain timers that are set, as adoption does.
func BenchmarkObserve(b *testing.B) {
	eachBatch(b, func(b *testing.B, x *index, n int) {
		hints := make([]schedule.Hint, n)
		for i := range hints {
			hints[i] = schedule.Hint{Kind: schedule.Touched, Key: fmt.Sprintf("app1:trans:notice:%d", i)}
			x.do("SET", hints[i].Key, strings.Repeat("x", 200), "EX", 3600)
		}
		heard := x.heard()
		for b.Loop() {
			if _, err := x.Observe(b.Context(), hints, heard); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// usec returns the time of Redis for a command so far, in µs.
func (x *index) usec(command string) float64 {
	x.t.Helper()
	info, err := x.rdb.Info(x.t.Context(), "commandstats").Result()
	if err != nil {
		x.t.Fatal(err)
	}
	var calls, usec float64
	for line := range strings.Lines(info) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_"+command+":"); ok {
			_, _ = fmt.Sscanf(rest, "calls=%f,usec=%f", &calls, &usec)
		}
	}
	return usec
}
