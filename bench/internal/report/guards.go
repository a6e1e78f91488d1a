package report

import (
	"fmt"
	"strings"

	"github.com/timerd-io/timerd/bench/internal/load"
	"github.com/timerd-io/timerd/bench/internal/result"
	"github.com/timerd-io/timerd/bench/internal/rig"
)

// guards shows a spike of timers without guards beside one of guarded timers.
func (d data) guards(b *strings.Builder) {
	t := table{head: []string{"guards", "drained, ms", "p99 ms", "Redis, CPU s", "timerd, CPU s", "undelivered",
		"fired although refused"}}
	cpu := func(role string) func(*result.Measurement) float64 {
		return func(m *result.Measurement) float64 { return m.Usage[role].CPU }
	}
	for _, workload := range []string{load.GuardsNone, load.GuardsHalf} {
		c := d.workload("timerd", workload)
		if len(c) == 0 {
			continue
		}
		t.add(strings.TrimPrefix(workload, "guards: "),
			c.text(0, delivered(func(f *result.Firings) float64 { return f.Drained })), c.lateness()[1],
			c.text(2, cpu(rig.RoleRedis)), c.text(2, cpu(rig.RoleTimerd)), c.worst((*result.Firings).Undelivered),
			c.text(0, named(load.ValueRefusedFired)))
	}
	if len(t.rows) == 0 {
		return
	}
	t.write(b, "Guards", fmt.Sprintf("%s timers due at one instant; the keys of half of the guards are there.",
		format(float64(d.firings(load.GuardsNone).Timers), 0)))
}
