package peer

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/bench/internal/firing"
	"github.com/timerd-io/timerd/bench/internal/rig"
	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/keys"
)

const workerEvents = "events"

// events is the method of most tutorials: SET key payload PX, and a subscription to Redis's expired events. The event
// names the key, and the payload is gone by then.
type events struct {
	settings []devserver.RedisOption
	rdb      *redis.Client
}

func eventsSpecs() []Spec {
	spec := func(name, title, settings string, conf ...devserver.RedisOption) Spec {
		return Spec{
			Name: name, Title: title, Settings: settings, Redis: conf, OnRedis: true, Preload: true, ArmRate: 40_000,
			Missing: available,
			New:     func(s Spec) System { return &events{settings: s.Redis} },
		}
	}
	return []Spec{
		spec("events", "Redis `expired` events, hz 10",
			"hz 10, active-expire-effort 1 (Redis's defaults); no payload reaches the subscriber",
			devserver.Directive("notify-keyspace-events", "Ex")),
		spec("events-hz100", "Redis `expired` events, hz 100",
			"hz 100, active-expire-effort 10; no payload reaches the subscriber",
			devserver.Directive("notify-keyspace-events", "Ex"), devserver.Directive("hz", "100"),
			devserver.Directive("active-expire-effort", "10")),
	}
}

func (e *events) Start(ctx context.Context, r *rig.Rig, fired func(firing.Firing)) error {
	var err error
	if e.rdb, err = r.Redis(ctx, e.settings...); err != nil {
		return err
	}
	return startWorker(ctx, r, rig.RoleWorker, fired, workerEvents, e.rdb.Options().Addr)
}

func (e *events) Arm(ctx context.Context, timers []firing.Timer) error {
	return SetPlain(ctx, e.rdb, timers)
}

// eventsWorker subscribes to the expired events of a Redis. Its argument is the address.
func eventsWorker(ctx context.Context, args []string, report *firing.Reporter) error {
	rdb := redis.NewClient(&redis.Options{Addr: args[0]})
	defer func() { _ = rdb.Close() }()
	sub := rdb.Subscribe(ctx, keys.ExpiredChannel(0))
	if _, err := sub.Receive(ctx); err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = sub.Close() }) // it ignores ctx
	if err := report.Ready(); err != nil {
		return err
	}
	for {
		msg, err := sub.ReceiveMessage(ctx)
		if err != nil {
			return ignoreEnd(ctx, err)
		}
		received := time.Now()
		n, err := firing.OfKey(msg.Payload)
		if err != nil {
			continue // an expired foreign key
		}
		if err := report.Fired(firing.Firing{N: n, Received: received}); err != nil {
			return err
		}
	}
}
