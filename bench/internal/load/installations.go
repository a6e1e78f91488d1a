package load

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/timerd-io/timerd/bench/internal/peer"
	"github.com/timerd-io/timerd/bench/internal/result"
	"github.com/timerd-io/timerd/bench/internal/rig"
)

// The beginnings of the names of the workloads of Installations.
const (
	InstallationIdle  = "shapes: idle"
	InstallationRate  = "shapes: rate"
	InstallationSpike = "shapes: spike"
)

// InstallationsAmong returns the systems for [Bench.Installations], of some.
func InstallationsAmong(specs []peer.Spec) []peer.Spec {
	return among(specs, "timerd", "timerd-x3", "timerd-cluster", "timerd-cluster-x3", "timerd-r3")
}

// Installations measures installations of timerd, one after the other, with one or several servers and timerds. It
// measures timers due at a steady rate and at one instant, idle timerds with pending timers, and the rate of setting
// timers.
func (b *Bench) Installations(ctx context.Context, specs []peer.Spec, round int,
	save func(result.Measurement) error) error {
	for _, s := range specs {
		if err := b.installation(ctx, s, round, save); err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	return nil
}

func (b *Bench) installation(ctx context.Context, spec peer.Spec, round int,
	save func(result.Measurement) error) (err error) {
	x, err := b.start(ctx, spec, spec.New(spec))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	if err := sleepUntil(ctx, time.Now().Add(settled)); err != nil { // until each timerd knows which others listen
		return err
	}
	if err := b.fire(ctx, x, InstallationRate, InstallationSpike, b.Scale.AtOnce, round, save); err != nil {
		return err
	}
	if err := x.preload(ctx, b.Scale.Waiting); err != nil {
		return err
	}
	if err := sleepUntil(ctx, time.Now().Add(settled)); err != nil {
		return err
	}
	m := x.measurement(InstallationIdle, round)
	if m.Values, m.Usage, err = b.watch(ctx, x); err != nil {
		return err
	}
	percent := func(role string) float64 { return 100 * m.Usage[role].CPU / m.Values[ValueSeconds] }
	b.logf("%s: idle with %d pending: Redis uses %.1f %% of a core, timerd %.1f %%, in all", spec.Name, m.Pending,
		percent(rig.RoleRedis), percent(rig.RoleTimerd))
	return save(m)
}

// fire sets timers that are due at a steady rate, and then atOnce timers that are due at one instant, on an
// installation.
func (b *Bench) fire(ctx context.Context, x *running, rate, spike string, atOnce, round int,
	save func(result.Measurement) error) error {
	for _, shape := range []Shape{
		{Name: rate, Timers: int(float64(b.Scale.Rate) * b.Scale.Rated.Seconds()), Spread: b.Scale.Rated},
		{Name: spike, Timers: atOnce},
	} {
		m := x.measurement(shape.Name, round)
		if err := b.deliver(ctx, x, shape, nil, &m); err != nil {
			return err
		}
		b.logf("%s: %s of %d: p50 %.1f ms, p99 %.1f ms, drained in %.0f ms; µs a firing: Redis %.0f, timerd %.0f, "+
			"NATS %.0f; set at %.0f/s",
			x.spec.Name, shape.Name, shape.Timers, m.Firings.Consumed.P50, m.Firings.Consumed.P99, m.Firings.Drained,
			m.CPUPerFiring(rig.RoleRedis), m.CPUPerFiring(rig.RoleTimerd), m.CPUPerFiring(rig.RoleNATS),
			m.Firings.ArmRate)
		if err := save(m); err != nil {
			return err
		}
	}
	return nil
}

// settled is the time after which an installation counts as idle: it has started, settled its firings and counted them.
const settled = 5 * time.Second
