package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/timerd-io/timerd/bench/internal/firing"
	"github.com/timerd-io/timerd/bench/internal/peer"
	"github.com/timerd-io/timerd/bench/internal/result"
	"github.com/timerd-io/timerd/bench/internal/rig"
)

// Shape is a workload of timers that are set and then fire.
type Shape struct {
	Name   string
	Timers int
	Spread time.Duration // the time over which due times are spread evenly; 0: one instant
}

const (
	// quietTime is the time between the last set timer and the first due one, so that setting does not disturb firing.
	// Early firings fall into it.
	quietTime = 1500 * time.Millisecond
	// linger is the time to wait for repeated firings after all timers have fired.
	linger = time.Second
	// armTries limits the tries of a workload. If setting takes too long, the workload is tried again with more lead.
	armTries = 4
	// sampleInterval is the interval of samples of the resident memory.
	sampleInterval = 500 * time.Millisecond
	// curvePoints is the number of points of the drain curve.
	curvePoints = 200
)

// errLate means that some timers were due before all were set.
var errLate = errors.New("setting the timers took longer than allowed for")

// Deliver measures shapes on a newly started system. The system has pending timers that are due much later, and foreign
// keys. Deliver calls save with each measurement.
func (b *Bench) Deliver(ctx context.Context, spec peer.Spec, shapes []Shape, pending, foreign, round int,
	save func(result.Measurement) error) (err error) {
	x, err := b.start(ctx, spec, spec.New(spec))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	if foreign > 0 {
		if err := x.addForeign(ctx, foreign); err != nil {
			return err
		}
	}
	if pending > 0 {
		m, err := b.memory(ctx, x, pending, round)
		if err := errors.Join(err, x.Died()); err != nil {
			return err
		}
		if err := save(m); err != nil {
			return err
		}
	}
	for _, shape := range shapes {
		m := x.measurement(shape.Name, round)
		if err := b.deliver(ctx, x, shape, nil, &m); err != nil {
			return err
		}
		f := m.Firings
		b.logf("%s: %s, %d pending, %d foreign: p50 %.1f ms, p99 %.1f ms, drained in %.0f ms; %d undelivered, %d "+
			"early, %d repeated; %.0f µs CPU a firing",
			spec.Name, shape.Name, pending, foreign, f.Consumed.P50, f.Consumed.P99, f.Drained, f.Undelivered(),
			f.Early, f.Duplicates, m.CPUPerFiring())
		if err := save(m); err != nil {
			return err
		}
	}
	return nil
}

// deliver measures a shape on a running system, and fills in the results and the usage. It calls meanwhile, if not nil,
// when the first timer is due; meanwhile must return at once.
func (b *Bench) deliver(ctx context.Context, x *running, shape Shape, meanwhile func(),
	m *result.Measurement) (err error) {
	for range armTries {
		m.Firings, m.Usage, err = b.tryDeliver(ctx, x, shape, meanwhile)
		if !errors.Is(err, errLate) {
			break
		}
		b.logf("%s: %s: only %.0f timers were set per second; again, with more lead", x.spec.Name, shape.Name,
			x.armRate)
	}
	if err != nil {
		return fmt.Errorf("%s on %s: %w", shape.Name, x.spec.Name, errors.Join(err, x.Died()))
	}
	return nil
}

// tryDeliver sets the timers, all of them before the first one is due, and waits for their firings.
func (b *Bench) tryDeliver(ctx context.Context, x *running, shape Shape,
	meanwhile func()) (*result.Firings, map[string]result.Usage, error) {
	const margin = 1.5
	lead := quietTime + time.Second + time.Duration(margin*float64(shape.Timers)/x.armRate*float64(time.Second))
	timers := spread(x.number(shape.Timers), shape, time.Now().Add(lead))
	first, firstDue := timers[0].N, timers[0].Due
	lastDue := timers[len(timers)-1].Due
	dues := make([]time.Time, len(timers))
	for i, t := range timers {
		dues[i] = t.Due
	}
	x.begin(first, len(timers))
	shuffle(timers)

	began := time.Now()
	if err := x.Arm(ctx, timers); err != nil {
		return nil, nil, fmt.Errorf("set %d timers: %w", len(timers), err)
	}
	armed := time.Now()
	x.armRate = float64(shape.Timers) / armed.Sub(began).Seconds()
	if armed.After(firstDue.Add(-quietTime)) {
		return nil, nil, errors.Join(errLate, x.wait(ctx, later(armed, lastDue).Add(b.Grace)))
	}
	if err := sleepUntil(ctx, firstDue.Add(-quietTime)); err != nil {
		return nil, nil, err
	}
	before, err := x.Usage()
	if err != nil {
		return nil, nil, err
	}
	stop := samplePeak(x.Rig)
	counting := time.Now()
	if meanwhile != nil {
		if err = sleepUntil(ctx, firstDue); err == nil {
			meanwhile()
		}
	}
	if err == nil {
		err = x.wait(ctx, lastDue.Add(b.Grace))
	}
	if err == nil {
		err = sleepUntil(ctx, time.Now().Add(linger))
	}
	peak := stop()
	after, usageErr := x.Usage()
	if err := errors.Join(err, usageErr, x.Died()); err != nil {
		return nil, nil, err
	}
	f := evaluate(first, dues, x.got())
	f.Spread = ms(shape.Spread)
	f.ArmRate, f.ArmLead = x.armRate, ms(firstDue.Sub(armed))
	f.Window = ms(time.Since(counting))
	return f, usage(before, after, peak), nil
}

// spread returns timers whose due times are spread evenly over a time from start on, in the order of their numbers.
func spread(first int64, shape Shape, start time.Time) []firing.Timer {
	start = start.Truncate(time.Millisecond)
	timers := make([]firing.Timer, shape.Timers)
	for i := range timers {
		due := start.Add(time.Duration(float64(shape.Spread) * float64(i) / float64(len(timers))).Truncate(
			time.Millisecond))
		timers[i] = firing.Timer{N: first + int64(i), Due: due}
	}
	return timers
}

// shuffle puts timers into another order, the same one each time: users do not set timers in the order of their due
// times.
func shuffle(timers []firing.Timer) {
	r := rand.New(rand.NewPCG(1, uint64(len(timers))))
	r.Shuffle(len(timers), func(i, j int) { timers[i], timers[j] = timers[j], timers[i] })
}

// evaluate compares firings with the due times of the timers from first on. The due times are in order.
func evaluate(first int64, dues []time.Time, firings []firing.Firing) *result.Firings {
	f := &result.Firings{Timers: len(dues)}
	seen := make([]bool, len(dues))
	var consumed, published, after []float64
	for _, got := range firings {
		i := got.N - first
		if seen[i] {
			f.Duplicates++
			continue
		}
		seen[i] = true
		f.Delivered++
		due := dues[i]
		if !got.Due.IsZero() {
			due = got.Due
		}
		late := ms(got.Received.Sub(due))
		if late < 0 {
			f.Early++
		}
		consumed = append(consumed, late)
		after = append(after, ms(got.Received.Sub(dues[0])))
		if !got.Published.IsZero() {
			published = append(published, ms(got.Published.Sub(due)))
		}
	}
	f.Consumed = result.NewDist(consumed)
	if len(published) > 0 {
		d := result.NewDist(published)
		f.Published = &d
	}
	slices.Sort(after)
	for i := range after[:max(0, len(after)-1)] {
		f.Gap = max(f.Gap, after[i+1]-after[i])
	}
	if len(after) > 0 {
		f.Drained = after[len(after)-1] - ms(dues[len(dues)-1].Sub(dues[0]))
		f.Curve = curve(after)
	}
	return f
}

// curve returns points of the number of firings over time, from sorted times. There are at most curvePoints points.
func curve(after []float64) []result.Point {
	step := max(1, len(after)/curvePoints)
	var points []result.Point
	for i := 0; i < len(after); i += step {
		points = append(points, result.Point{Ms: after[i], N: i + 1})
	}
	return append(points, result.Point{Ms: after[len(after)-1], N: len(after)})
}

// samplePeak samples the resident memory until the returned function is called. That function returns the highest
// sample by role.
func samplePeak(r *rig.Rig) (stop func() map[string]int64) {
	end, peaks := make(chan struct{}), make(chan map[string]int64)
	go func() {
		peak := make(map[string]int64)
		tick := time.NewTicker(sampleInterval)
		defer tick.Stop()
		for {
			select {
			case <-end:
				peaks <- peak
				return
			case <-tick.C:
			}
			if now, err := r.Usage(); err == nil { // the caller's last sample reports errors
				for role, u := range now {
					peak[role] = max(peak[role], u.RSS)
				}
			}
		}
	}()
	return func() map[string]int64 {
		close(end)
		return <-peaks
	}
}

func sleepUntil(ctx context.Context, t time.Time) error {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
