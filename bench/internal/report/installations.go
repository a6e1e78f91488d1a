package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/timerd-io/timerd/bench/internal/load"
	"github.com/timerd-io/timerd/bench/internal/result"
	"github.com/timerd-io/timerd/bench/internal/rig"
)

// installed returns the systems measured in a workload of Installations. The workload may have measured systems that
// the data does not list; their names are their titles.
func (d data) installed(workload string) []result.System {
	systems := slices.Clone(d.Systems)
	for _, m := range d.Measurements {
		known := slices.ContainsFunc(systems, func(s result.System) bool { return s.Name == m.System })
		if m.Workload == workload && !known {
			systems = append(systems, result.System{Name: m.System, Title: m.System})
		}
	}
	return slices.DeleteFunc(systems, func(s result.System) bool { return len(d.cell(s.Name, workload, 0, 0)) == 0 })
}

func (d data) installations(b *strings.Builder) {
	t := table{head: []string{
		"installation", "p50 ms", "p99 ms", "Redis µs a firing", "timerd µs", "NATS µs", "spike drained at, per s",
		"spike: Redis µs", "timerd µs",
		"set per s", "idle: Redis % of a core", "timerd %", "undelivered",
	}}
	perFiring := func(roles ...string) func(*result.Measurement) float64 {
		return func(m *result.Measurement) float64 { return m.CPUPerFiring(roles...) }
	}
	idle := func(role string) func(*result.Measurement) float64 {
		return func(m *result.Measurement) float64 { return 100 * m.Usage[role].CPU / m.Values[load.ValueSeconds] }
	}
	pending := 0
	for _, s := range d.installed(load.InstallationRate) {
		rate, spike := d.cell(s.Name, load.InstallationRate, 0, 0), d.cell(s.Name, load.InstallationSpike, 0, 0)
		pending = d.mostPending(s.Name, load.InstallationIdle)
		waiting := d.cell(s.Name, load.InstallationIdle, pending, 0)
		t.add(
			s.Title, rate.lateness()[0], rate.lateness()[1],
			rate.text(0, perFiring(rig.RoleRedis)), rate.text(0, perFiring(rig.RoleTimerd)),
			rate.text(0, perFiring(rig.RoleNATS)),
			spike.text(0, delivered(func(f *result.Firings) float64 {
				return float64(f.Delivered) * 1000 / f.Drained
			})),
			spike.text(0, perFiring(rig.RoleRedis)), spike.text(0, perFiring(rig.RoleTimerd)),
			spike.text(0, delivered(func(f *result.Firings) float64 { return f.ArmRate })),
			waiting.text(1, idle(rig.RoleRedis)), waiting.text(1, idle(rig.RoleTimerd)),
			rate.worst((*result.Firings).Undelivered),
		)
	}
	rate, spike := d.firings(load.InstallationRate), d.firings(load.InstallationSpike)
	t.write(b, "One server, several timerds, a cluster", fmt.Sprintf(
		"%s timers over %.0f s, then %s at one instant, then %s pending. CPU time is that of all processes of a kind "+
			"together: all masters, all timerds.",
		format(float64(rate.Timers), 0), rate.Spread/1000, format(float64(spike.Timers), 0), number(float64(pending))))
}

func (d data) installationsLateness() Plot {
	p := Plot{File: "shapes.svg", Alt: "Share of timers received by lateness, by installation", Chart: Chart{
		Title: "Lateness at the consumer, by installation",
		X:     Axis{Label: "ms after the due time (log)", Log: true, Least: least},
		Y:     Axis{Label: "share of all timers received, %"},
	}}
	for _, s := range d.installed(load.InstallationRate) {
		if m := d.cell(s.Name, load.InstallationRate, 0, 0).middle(); m != nil {
			p.Series = append(p.Series, Series{Name: s.Title, XY: shares(m.Firings)})
		}
	}
	return p
}
