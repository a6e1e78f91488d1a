package peer

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/bench/internal/firing"
	"github.com/timerd-io/timerd/bench/internal/rig"
	"github.com/timerd-io/timerd/internal/devserver"
)

const workerPoller = "poller"

// poller is the other common method of tutorials: a sorted set scored by due time, and a hash of payloads. A loop looks
// for due timers at an interval. It removes timers before the work on them, so a dying worker loses its timers.
type poller struct {
	interval time.Duration
	rdb      *redis.Client
}

// Keys of the poller.
const (
	pollerDue      = "poller:due"
	pollerPayloads = "poller:payloads"
)

// pollerScript removes due timers. KEYS: the sorted set, the hash. ARGV: the unix ms, the most timers. It returns the
// payloads.
const pollerScript = `
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
if #due == 0 then return {} end
local payloads = redis.call('HMGET', KEYS[2], unpack(due))
redis.call('ZREM', KEYS[1], unpack(due))
redis.call('HDEL', KEYS[2], unpack(due))
return payloads`

const pollerBatch = 512

func pollerSpecs() []Spec {
	spec := func(name string, interval time.Duration) Spec {
		return Spec{
			Name: name, Title: fmt.Sprintf("ZSET poller, every %v", interval), OnRedis: true, Preload: true,
			ArmRate: 30_000, Missing: available,
			Variant: interval < time.Second,
			Settings: fmt.Sprintf(
				"one Lua script takes up to %d due timers; repeated until a short batch, then every %v; a worker's "+
					"crash loses its timers", pollerBatch, interval),
			New: func(Spec) System { return &poller{interval: interval} },
		}
	}
	return []Spec{spec("zset-1s", time.Second), spec("zset-10ms", 10*time.Millisecond)}
}

func (p *poller) Start(ctx context.Context, r *rig.Rig, fired func(firing.Firing)) error {
	var err error
	if p.rdb, err = r.Redis(ctx, devserver.Directive("notify-keyspace-events", "")); err != nil {
		return err
	}
	return startWorker(ctx, r, rig.RoleWorker, fired, workerPoller, p.rdb.Options().Addr, p.interval.String())
}

func (p *poller) Arm(ctx context.Context, timers []firing.Timer) error {
	return inParallel(ctx, timers, 2, func(ctx context.Context, part []firing.Timer) error {
		_, err := p.rdb.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, t := range part {
				pipe.HSet(ctx, pollerPayloads, t.Key(), t.Payload())
				pipe.ZAdd(ctx, pollerDue, redis.Z{Score: float64(t.Due.UnixMilli()), Member: t.Key()})
			}
			return nil
		})
		return err
	})
}

// pollerWorker looks for due timers at an interval. Its arguments are the address of Redis and the interval.
func pollerWorker(ctx context.Context, args []string, report *firing.Reporter) error {
	interval, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{Addr: args[0]})
	defer func() { _ = rdb.Close() }()
	script := redis.NewScript(pollerScript)
	if err := report.Ready(); err != nil {
		return err
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		for taken := pollerBatch; taken == pollerBatch; {
			payloads, err := script.Run(ctx, rdb, []string{pollerDue, pollerPayloads}, time.Now().UnixMilli(),
				pollerBatch).StringSlice()
			if err != nil {
				return ignoreEnd(ctx, err)
			}
			received := time.Now()
			for _, payload := range payloads {
				n, err := firing.OfPayload([]byte(payload))
				if err != nil {
					return err
				}
				if err := report.Fired(firing.Firing{N: n, Received: received}); err != nil {
					return err
				}
			}
			taken = len(payloads)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// ignoreEnd returns err, or nil if the end of ctx caused it.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return nil
}
