package load

import (
	"context"
	"errors"
	"fmt"

	"github.com/timerd-io/timerd/bench/internal/peer"
	"github.com/timerd-io/timerd/bench/internal/result"
	"github.com/timerd-io/timerd/bench/internal/rig"
)

// RatesPrefix begins the names of the workloads of Rates; the rate follows.
const RatesPrefix = "rates: "

// Rates measures timers that are due evenly at several rates, one rate after the other on the same servers: their
// lateness, and each process's use of the cores.
func (b *Bench) Rates(ctx context.Context, round int, save func(result.Measurement) error) (err error) {
	x, err := b.startTimerd(ctx, &peer.Timerd{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	for _, rate := range b.Scale.Rates {
		shape := Shape{Name: fmt.Sprintf("%s%d", RatesPrefix, rate),
			Timers: int(float64(rate) * b.Scale.Rated.Seconds()), Spread: b.Scale.Rated}
		m := x.measurement(shape.Name, round)
		if err := b.deliver(ctx, x.running, shape, nil, &m); err != nil {
			return err
		}
		m.Values = map[string]float64{ValueRate: float64(rate)}
		b.logf("%d firings/s: p50 %.1f ms, p99 %.1f ms; Redis uses %.2f cores, timerd %.2f, NATS %.2f", rate,
			m.Firings.Consumed.P50, m.Firings.Consumed.P99,
			m.CoresFiring(rig.RoleRedis), m.CoresFiring(rig.RoleTimerd), m.CoresFiring(rig.RoleNATS))
		if err := save(m); err != nil {
			return err
		}
	}
	return nil
}
