package nemesis

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv/lab"
	"github.com/timerd-io/timerd/torture/internal/history"
	"github.com/timerd-io/timerd/torture/internal/servers"
)

// target has the things that faults break.
type target struct {
	*servers.System
	crowds Crowds
	record *history.Fault // for facts that only the injection knows
}

// Crowds are producers that set too many timers; see the methods of Producers in package producers.
type Crowds interface {
	Crowd(ctx context.Context, app string)
	Repeat(ctx context.Context)
	Retry(ctx context.Context)
}

// injection begins a fault, and returns the function that ends it.
type injection func(ctx context.Context, t target, f Fault) (heal func() error, err error)

// Lease is the TIMERD_LEASE for which the faults are made: a pause lasts longer.
const Lease = 2 * time.Second

// ClockStepped is the fault that needs a special timerd, and RedisAhead the fault that needs a library for Redis; see
// package clockstep.
const (
	ClockStepped = "clock stepped"
	RedisAhead   = "redis ahead"
)

// The faults of one master of a cluster. The master neither answers nor refuses: for less time than the others wait, in
// short turns, or until its replica has taken over.
const (
	MasterSilent = "master silent"
	MasterSlow   = "master slow"
	MasterFrozen = "master frozen"
)

// The faults of one app, or of its keys.
const (
	RightsTaken   = "rights taken"
	SubjectDenied = "subject denied"
	DeadFull      = "dead letters full"
	KeysEvicted   = "keys evicted"
	Giants        = "giants"
	Flood         = "flood"
)

func kinds() []kind {
	const ms = time.Millisecond
	proxied, cluster := []servers.Shape{servers.Standalone, servers.Several}, []servers.Shape{servers.Cluster}
	return []kind{
		{name: "timerd killed", part: timerdPart, effect: history.Deafens, one: true, restarts: true, min: 100 * ms,
			max: 3000 * ms, inject: killTimerd},
		{name: "timerd paused", part: timerdPart, effect: history.Deafens, one: true, min: Lease + 500*ms,
			max: 2*Lease + 1000*ms, inject: pauseTimerd},
		{name: "timerd restarted", part: timerdPart, effect: history.Deafens, one: true, restarts: true, min: 1 * ms,
			max: 1500 * ms, inject: stopTimerd},
		{name: "timerds killed", part: timerdPart, effect: history.Deafens, restarts: true, min: 100 * ms,
			max: 3000 * ms, inject: killTimerds, shapes: []servers.Shape{servers.Several, servers.Sentinel,
				servers.Cluster}},
		{name: "clock put right", part: timerdPart | redisPart, effect: history.Deafens, restarts: true, min: 100 * ms,
			max: 3000 * ms, inject: putClockRight},
		{name: ClockStepped, part: timerdPart, effect: history.Delays, one: true, min: 1000 * ms, max: 6000 * ms,
			inject: stepClock},

		{name: "redis killed", part: redisPart, effect: history.Deafens, min: 1 * ms, max: 3000 * ms, inject: killRedis,
			shapes: proxied},
		{name: "redis cut", part: redisPart, effect: history.Deafens, one: true, min: 300 * ms, max: 4000 * ms,
			inject: onRedis((*lab.Proxy).Cut), shapes: proxied},
		{name: "redis dropped", part: redisPart, effect: history.Deafens, one: true, min: 1 * ms, max: 100 * ms,
			inject: onRedis((*lab.Proxy).Drop), shapes: proxied},
		{name: "redis slow", part: redisPart, effect: history.Deafens, one: true, min: 1000 * ms, max: 4000 * ms,
			inject: onRedis(slow), shapes: proxied},
		{name: "redis silent", part: redisPart, effect: history.Deafens, one: true, min: 1000 * ms, max: 7000 * ms,
			inject: onRedis((*lab.Proxy).Blackhole), shapes: proxied},
		{name: "flags off", part: redisPart, effect: history.Deafens, min: 1000 * ms, max: 5000 * ms, inject: flagsOff},
		{name: "subscribers killed", part: redisPart, effect: history.Deafens, min: 1 * ms, max: 100 * ms,
			inject: command("CLIENT", "KILL", "TYPE", "pubsub")},
		{name: "scripts flushed", part: redisPart, effect: history.Delays, min: 1 * ms, max: 100 * ms,
			inject: command("SCRIPT", "FLUSH")},
		{name: "functions flushed", part: redisPart, effect: history.Delays, min: 1 * ms, max: 100 * ms,
			inject: command("FUNCTION", "FLUSH")},

		{name: RedisAhead, part: timerdPart | redisPart, effect: history.KeysGo, restarts: true, min: 1 * ms,
			max: 100 * ms, inject: redisAhead, shapes: proxied},
		{name: KeysEvicted, part: redisPart, effect: history.KeysGo, min: 1000 * ms, max: 4000 * ms, inject: evictKeys},
		{name: RightsTaken, part: redisPart, effect: history.Deafens, app: history.NarrowApp, min: 3000 * ms,
			max: 8000 * ms, inject: takeRights},

		{name: "master killed", part: redisPart, effect: history.Failover, min: 1000 * ms, max: 4000 * ms,
			inject: killRedis, shapes: []servers.Shape{servers.Sentinel, servers.Cluster}},
		{name: "failover", part: redisPart, effect: history.Failover, min: 1 * ms, max: 100 * ms, inject: failover,
			shapes: []servers.Shape{servers.Sentinel, servers.Cluster}},
		{name: "slots moved", part: redisPart, effect: history.Carries, min: 1 * ms, max: 100 * ms, inject: moveSlots,
			shapes: cluster},
		{name: MasterSilent, part: redisPart, effect: history.Deafens, min: 1000 * ms,
			max: servers.ClusterNodeTimeout - 500*ms, inject: onMaster((*servers.ClusterRedis).Silence),
			shapes: cluster},
		{name: MasterSlow, part: redisPart, effect: history.Deafens, min: 2000 * ms, max: 5000 * ms,
			inject: onMaster((*servers.ClusterRedis).Slow), shapes: cluster},
		{name: MasterFrozen, part: redisPart, effect: history.Failover, min: 4000 * ms, max: 8000 * ms,
			inject: freezeMaster, shapes: cluster},

		{name: "nats killed", part: natsPart, effect: history.Delays, delivers: true, min: 1 * ms, max: 5000 * ms,
			inject: killNATS},
		{name: "nats cut", part: natsPart, effect: history.Delays, one: true, min: 300 * ms, max: 6000 * ms,
			inject: onNATS((*lab.Proxy).Cut)},
		{name: "nats dropped", part: natsPart, effect: history.Delays, min: 1 * ms, max: 100 * ms,
			inject: onAllNATS((*lab.Proxy).Drop)},
		{name: "nats slow", part: natsPart, effect: history.Delays, one: true, min: 1000 * ms, max: 4000 * ms,
			inject: onNATS(slow)},
		{name: "nats silent", part: natsPart, effect: history.Delays, min: 1000 * ms, max: 8000 * ms,
			inject: onAllNATS((*lab.Proxy).Blackhole)},
		{name: SubjectDenied, part: natsPart, effect: history.Delays, app: history.DeniedApp, min: 3000 * ms,
			max: 8000 * ms, inject: denySubject},
		{name: DeadFull, part: natsPart, effect: history.Delays, delivers: true, app: history.DyingApp, min: 3000 * ms,
			max: 8000 * ms, inject: fillDeadLetters},

		{name: Giants, part: crowdPart, effect: history.Delays, app: history.GiantApp, min: 2000 * ms, max: 4000 * ms,
			inject: crowd},
		{name: Flood, part: crowdPart, effect: history.Delays, app: history.FloodApp, min: 2000 * ms, max: 4000 * ms,
			inject: crowd},
	}
}

func killTimerd(_ context.Context, s target, f Fault) (func() error, error) {
	t := s.Timerds[f.Timerd]
	return t.Start, t.Kill()
}

func killTimerds(_ context.Context, s target, _ Fault) (func() error, error) {
	var errs []error
	for _, t := range s.Timerds {
		errs = append(errs, t.Kill())
	}
	return func() error {
		var errs []error
		for _, t := range s.Timerds {
			errs = append(errs, t.Start())
		}
		return errors.Join(errs...)
	}, errors.Join(errs...)
}

func pauseTimerd(_ context.Context, s target, f Fault) (func() error, error) {
	t := s.Timerds[f.Timerd]
	return t.Resume, t.Pause()
}

func stopTimerd(_ context.Context, s target, f Fault) (func() error, error) {
	t := s.Timerds[f.Timerd]
	return t.Start, t.Stop()
}

// stepClock steps the clock by 1, 2, 4 … 512 minutes, forwards or backwards, and later steps it back.
func stepClock(_ context.Context, s target, f Fault) (func() error, error) {
	step := time.Minute << (f.Pick / 2 % 10)
	if f.Pick%2 == 1 {
		step = -step
	}
	t := s.Timerds[f.Timerd]
	return func() error { return t.StepClock(0) }, t.StepClock(step)
}

func killRedis(ctx context.Context, s target, f Fault) (func() error, error) {
	return s.Redis.Kill(ctx, f.Pick)
}

func killNATS(ctx context.Context, s target, _ Fault) (func() error, error) {
	return func() error { return s.NATS.Start(ctx) }, s.NATS.Kill()
}

// slow delays each packet by half a second in each direction.
func slow(p *lab.Proxy) { p.Delay(250 * time.Millisecond) }

// onRedis breaks the connections of one timerd to Redis, onNATS the connections of one timerd to NATS, and onAllNATS
// the connections of all timerds to NATS.
func onRedis(breaks func(*lab.Proxy)) injection {
	return func(_ context.Context, s target, f Fault) (func() error, error) {
		return broken(breaks, s.ToRedis[f.Timerd])
	}
}

func onNATS(breaks func(*lab.Proxy)) injection {
	return func(_ context.Context, s target, f Fault) (func() error, error) {
		return broken(breaks, s.ToNATS[f.Timerd])
	}
}

func onAllNATS(breaks func(*lab.Proxy)) injection {
	return func(_ context.Context, s target, _ Fault) (func() error, error) {
		return broken(breaks, s.ToNATS...)
	}
}

func broken(breaks func(*lab.Proxy), proxies ...*lab.Proxy) (func() error, error) {
	for _, p := range proxies {
		breaks(p)
	}
	return func() error {
		for _, p := range proxies {
			p.Heal()
		}
		return nil
	}, nil
}

// onMasters calls a function for each master. It skips an absent master: that master's data is lost already.
func onMasters(ctx context.Context, s target, do func(*redis.Client) error) error {
	masters, err := s.Redis.Masters(ctx)
	for _, m := range masters {
		err = errors.Join(err, do(m))
	}
	return err
}

func command(args ...any) injection {
	return func(ctx context.Context, s target, _ Fault) (func() error, error) {
		err := onMasters(ctx, s, func(c *redis.Client) error { return c.Do(ctx, args...).Err() })
		return nothing, err
	}
}

func nothing() error { return nil }

// notifyFlags is the setting with the enabled keyspace events.
const notifyFlags = "notify-keyspace-events"

// flagsOff switches all keyspace events off. timerd may switch them on again before the end of the fault.
func flagsOff(ctx context.Context, s target, _ Fault) (func() error, error) {
	was := map[*redis.Client]string{}
	err := onMasters(ctx, s, func(c *redis.Client) error {
		flags, err := c.ConfigGet(ctx, notifyFlags).Result()
		if err != nil {
			return err
		}
		was[c] = flags[notifyFlags]
		return c.ConfigSet(ctx, notifyFlags, "").Err()
	})
	return func() error {
		var errs []error
		for c, flags := range was {
			errs = append(errs, c.ConfigSet(ctx, notifyFlags, flags).Err())
		}
		return errors.Join(errs...)
	}, err
}

func failover(ctx context.Context, s target, f Fault) (func() error, error) {
	switch r := s.Redis.(type) {
	case *servers.SentinelRedis:
		return func() error { return r.Failover(ctx) }, nil
	case *servers.ClusterRedis:
		return func() error { return r.Failover(ctx, f.Pick) }, nil
	}
	return nil, fmt.Errorf("nemesis: no failover in the shape %s", s.Shape)
}

// moves is the number of slots that one fault moves.
const moves = 5

func moveSlots(ctx context.Context, s target, f Fault) (func() error, error) {
	r, err := s.cluster()
	if err != nil {
		return nil, err
	}
	for i := range moves {
		if _, err := r.MoveSlot(ctx, f.Pick, i%2 == 0); err != nil {
			return nil, err
		}
	}
	return nothing, nil
}
