package load

import (
	"context"
	"time"

	"github.com/timerd-io/timerd/bench/internal/result"
)

// aftermath is the time after setting many timers in which timerd processes their events, and the buffers of clients
// and of the AOF shrink.
const aftermath = 10 * time.Second

// memory sets n timers that are due after the end of the run, and measures their memory.
func (b *Bench) memory(ctx context.Context, x *running, n, round int) (m result.Measurement, err error) {
	usedBefore, err := redisMemory(ctx, x)
	if err != nil {
		return m, err
	}
	before, err := x.Usage()
	if err != nil {
		return m, err
	}
	if err := x.preload(ctx, n); err != nil {
		return m, err
	}
	if err := sleepUntil(ctx, time.Now().Add(aftermath)); err != nil {
		return m, err
	}
	usedAfter, err := redisMemory(ctx, x)
	if err != nil {
		return m, err
	}
	after, err := x.Usage()
	if err != nil {
		return m, err
	}
	m = x.measurement("memory", round)
	m.Values = make(map[string]float64)
	if x.RedisClient != nil {
		m.Values[ValueBytes] = (usedAfter - usedBefore) / float64(n)
	}
	m.Usage = usage(before, after, nil)
	for role, u := range after {
		m.Values[ValueRSS+" "+role] = float64(u.RSS-before[role].RSS) / float64(n)
	}
	b.logf("%s: %d pending, %.0f bytes of Redis's memory each", x.spec.Name, n, m.Values[ValueBytes])
	return m, nil
}

// redisMemory returns the bytes that Redis has allocated, 0 without Redis.
func redisMemory(ctx context.Context, x *running) (float64, error) {
	if x.RedisClient == nil {
		return 0, nil
	}
	return stat(ctx, x.RedisClient, "memory", "used_memory")
}
