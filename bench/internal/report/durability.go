package report

import (
	"fmt"
	"strings"

	"github.com/timerd-io/timerd/bench/internal/load"
	"github.com/timerd-io/timerd/bench/internal/result"
	"github.com/timerd-io/timerd/bench/internal/rig"
)

// durability shows the lateness of timers, and the time to drain a spike, by the servers' way of syncing to disk before
// they answer.
func (d data) durability(b *strings.Builder) {
	t := table{head: []string{
		"system", "a plain publisher, per s", "p50 ms", "p99 ms", "NATS µs a firing", "spike drained at, per s",
		"spike: NATS µs a firing", "undelivered",
	}}
	nats := func(m *result.Measurement) float64 { return m.CPUPerFiring(rig.RoleNATS) }
	for _, s := range d.installed(load.DurabilityRate) {
		name := s.Name
		plain, rate, spike := d.cell(name, load.DurabilityPlain, 0, 0), d.cell(name, load.DurabilityRate, 0, 0),
			d.cell(name, load.DurabilitySpike, 0, 0)
		t.add(
			s.Title, plain.text(0, func(m *result.Measurement) float64 { return m.Values[load.ValuePublished] }),
			rate.lateness()[0], rate.lateness()[1], rate.text(0, nats),
			spike.text(0, delivered(func(f *result.Firings) float64 {
				return float64(f.Delivered) * 1000 / f.Drained
			})), spike.text(0, nats),
			rate.worst((*result.Firings).Undelivered),
		)
	}
	rate, spike := d.firings(load.DurabilityRate), d.firings(load.DurabilitySpike)
	t.write(b, "How safe, how fast", fmt.Sprintf(
		"%s timers over %.0f s, then %s at one instant. The plain publisher has 4,096 acknowledgements outstanding, "+
			"of messages of 500 bytes.",
		format(float64(rate.Timers), 0), rate.Spread/1000, format(float64(spike.Timers), 0)))
}
