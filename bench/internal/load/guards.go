package load

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/bench/internal/firing"
	"github.com/timerd-io/timerd/bench/internal/peer"
	"github.com/timerd-io/timerd/bench/internal/result"
	"github.com/timerd-io/timerd/bench/internal/rig"
	"github.com/timerd-io/timerd/client"
)

// The workloads of Guards.
const (
	GuardsNone = "guards: none"
	GuardsHalf = "guards: half refused"
)

// ValueRefusedFired is the number of timers that fired although their guards said no.
const ValueRefusedFired = "refusedFired"

// guarded is a timerd whose timers have guards that let them fire. With each of them Arm sets another timer, of the
// next key, whose guard does not.
type guarded struct{ *peer.Timerd }

// Arm implements peer.System.
func (g guarded) Arm(ctx context.Context, timers []firing.Timer) error {
	const batch = 100
	setting := func(key string, payload []byte, due time.Time) client.Setting {
		return client.Setting{Key: key, Payload: payload, When: client.At(due),
			Options: []client.SetOption{client.Unless("paid:" + key)}}
	}
	set := client.New(g.Redis)
	for first := 0; first < len(timers); first += batch {
		part := timers[first:min(first+batch, len(timers))]
		settings := make([]client.Setting, 0, 2*batch)
		if _, err := g.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, t := range part {
				next := t.Key() + "a"
				pipe.Set(ctx, "paid:"+next, "", 0)
				settings = append(settings, setting(t.Key(), t.Payload(), t.Due),
					setting(next, firing.Timer{N: pendingFirst + t.N}.Payload(), t.Due))
			}
			return nil
		}); err != nil {
			return err
		}
		if _, err := set.SetMany(ctx, settings); err != nil {
			return err
		}
	}
	return nil
}

// Guards measures timers that are due at one instant: without guards, and as many with guards that stop half of them.
func (b *Bench) Guards(ctx context.Context, round int, save func(result.Measurement) error) (err error) {
	x, err := b.startTimerd(ctx, &peer.Timerd{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	for _, shape := range []Shape{
		{Name: GuardsNone, Timers: b.Scale.Guarded}, {Name: GuardsHalf, Timers: b.Scale.Guarded / 2},
	} {
		if shape.Name == GuardsHalf {
			x.System, x.armRate = guarded{x.timerd}, x.armRate/4
		}
		m := x.measurement(shape.Name, round)
		if err := b.deliver(ctx, x.running, shape, nil, &m); err != nil {
			return err
		}
		x.mu.Lock()
		m.Values = map[string]float64{ValueRefusedFired: float64(x.strays)}
		x.mu.Unlock()
		b.logf("%s of %d: drained in %.0f ms, p99 %.1f ms; %d undelivered, %.0f fired although refused; CPU of Redis "+
			"%.2f s, of timerd %.2f s, of NATS %.2f s", shape.Name, b.Scale.Guarded, m.Firings.Drained,
			m.Firings.Consumed.P99, m.Firings.Undelivered(), m.Values[ValueRefusedFired],
			m.Usage[rig.RoleRedis].CPU, m.Usage[rig.RoleTimerd].CPU, m.Usage[rig.RoleNATS].CPU)
		if err := save(m); err != nil {
			return fmt.Errorf("%s: %w", shape.Name, err)
		}
	}
	return nil
}
