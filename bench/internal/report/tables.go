// Package report makes Markdown tables and SVG plots of the results of a run.
package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/timerd-io/timerd/bench/internal/firing"
	"github.com/timerd-io/timerd/bench/internal/load"
	"github.com/timerd-io/timerd/bench/internal/peer"
	"github.com/timerd-io/timerd/bench/internal/result"
	"github.com/timerd-io/timerd/bench/internal/rig"
)

// Tables writes all measurements as Markdown.
func Tables(w io.Writer, run *result.Run) error {
	d := data{run}
	var b strings.Builder
	d.about(&b)
	d.delivery(&b)
	d.spikes(&b)
	d.crowded(&b)
	d.armed(&b)
	d.setting(&b)
	d.storms(&b)
	d.retries(&b)
	d.guards(&b)
	d.longest(&b)
	d.rates(&b)
	d.millions(&b)
	d.installations(&b)
	d.durability(&b)
	d.idle(&b)
	d.memory(&b)
	d.settings(&b)
	d.missing(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// table is a Markdown table.
type table struct {
	head []string
	rows [][]string
}

func (t *table) add(row ...string) { t.rows = append(t.rows, row) }

// write writes the table below a heading and a text. It writes nothing if the table has no rows.
func (t *table) write(b *strings.Builder, heading, text string) {
	if len(t.rows) == 0 {
		return
	}
	fmt.Fprintf(b, "### %s\n\n", heading)
	if text != "" {
		fmt.Fprintf(b, "%s\n\n", text)
	}
	fmt.Fprintf(b, "| %s |\n|%s\n", strings.Join(t.head, " | "), strings.Repeat("---|", len(t.head)))
	for _, row := range t.rows {
		fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
	}
	b.WriteString("\n")
}

// busyLoad is the load average above which a machine is not quiet.
const busyLoad = .5

func (d data) about(b *strings.Builder) {
	const at = "2006-01-02 15:04 MST"
	rounds := 0
	for _, m := range d.Measurements {
		if !strings.HasPrefix(m.Workload, load.MillionsPrefix) { // a run may have several of these
			rounds = max(rounds, m.Round)
		}
	}
	fmt.Fprintf(b, "Measured from %s to %s, profile `%s`, rounds of each: %d or fewer. %s, %d cores, %.0f GiB, %s, "+
		"%s; load average before it %.2f.\n\n",
		d.Started.Format(at), d.Finished.Format(at), d.Profile, rounds, d.Machine.CPU, d.Machine.Cores,
		d.Machine.MemoryGiB, d.Machine.OS, d.Machine.Kernel, d.Machine.Load)
	if d.Machine.Load > busyLoad {
		b.WriteString("**The machine was busy with other work before the run: take the numbers for orders of " +
			"magnitude.**\n\n")
	}
	var versions []string
	for _, name := range slices.Sorted(maps.Keys(d.Versions)) {
		versions = append(versions, name+" "+strings.TrimPrefix(strings.TrimPrefix(d.Versions[name], "postgres "),
			"timerd "))
	}
	fmt.Fprintf(b, "Versions: %s.\n\n", strings.Join(versions, "; "))
	fmt.Fprintf(b, "Numbers are medians over the rounds, with the least and the greatest in brackets. Undelivered, "+
		"early and repeated are the worst round. "+
		"A timer counts as undelivered if it was not received %.0f s after the last one was due.\n\n", d.Grace)
}

func (d data) delivery(b *strings.Builder) {
	for _, shape := range d.shapes(true) {
		t := table{head: []string{"system", "p50 ms", "p99 ms", "max ms", "published p99 ms", "undelivered", "early",
			"repeated", "CPU µs a firing", "of it worker", "memory MiB"}}
		for _, s := range d.Systems {
			c := d.cell(s.Name, shape, 0, 0)
			if len(c) == 0 {
				continue
			}
			t.add(append(append([]string{s.Title}, c.lateness()...), append(c.faults(), c.costs()...)...)...)
		}
		first := d.firings(shape)
		t.write(b, fmt.Sprintf("%s timers over %.0f s", format(float64(first.Timers), 0), first.Spread/1000),
			"Lateness: received by the consumer − due; published: stored by the stream − due.")
	}
}

// firings returns the firings of the first measurement of a shape.
func (d data) firings(shape string) *result.Firings {
	for _, m := range d.Measurements {
		if m.Workload == shape && m.Firings != nil {
			return m.Firings
		}
	}
	return &result.Firings{}
}

func (c cell) lateness() []string {
	return []string{
		c.text(1, delivered(func(f *result.Firings) float64 { return f.Consumed.P50 })),
		c.text(1, delivered(func(f *result.Firings) float64 { return f.Consumed.P99 })),
		c.text(1, delivered(func(f *result.Firings) float64 { return f.Consumed.Max })),
		c.published(),
	}
}

func (c cell) published() string {
	var with cell
	for _, m := range c {
		if m.Firings != nil && m.Firings.Published != nil {
			with = append(with, m)
		}
	}
	return with.text(1, delivered(func(f *result.Firings) float64 { return f.Published.P99 }))
}

func (c cell) faults() []string {
	return []string{
		c.worst((*result.Firings).Undelivered),
		c.worst(func(f *result.Firings) int { return f.Early }),
		c.worst(func(f *result.Firings) int { return f.Duplicates }),
	}
}

func (c cell) costs() []string {
	return []string{
		c.text(0, func(m *result.Measurement) float64 { return m.CPUPerFiring() }),
		c.text(0, func(m *result.Measurement) float64 {
			return m.CPUPerFiring(rig.RoleTimerd, rig.RoleConsumer, rig.RoleWorker)
		}),
		c.text(0, func(m *result.Measurement) float64 {
			var sum int64
			for _, u := range m.Usage {
				sum += u.RSS
			}
			return float64(sum) / (1 << 20)
		}),
	}
}

func (d data) spikes(b *strings.Builder) {
	for _, shape := range d.shapes(false) {
		t := table{head: []string{"system", "drained at, per s", "p50 ms", "p99 ms", "last ms", "undelivered", "early",
			"repeated", "CPU µs a firing", "of it worker", "memory MiB"}}
		for _, s := range d.Systems {
			c := d.cell(s.Name, shape, 0, 0)
			if len(c) == 0 {
				continue
			}
			row := []string{s.Title, c.text(0, delivered(drainRate))}
			row = append(row, c.lateness()[:3]...)
			t.add(append(append(row, c.faults()...), c.costs()...)...)
		}
		t.write(b, fmt.Sprintf("%s timers at one instant", format(float64(d.firings(shape).Timers), 0)), "")
	}
}

// drainRate is the number of deliveries a second, from the due time to the last delivery.
func drainRate(f *result.Firings) float64 {
	if f.Drained <= 0 {
		return 0 // all firings were early
	}
	return float64(f.Delivered) * 1000 / f.Drained
}

func (d data) crowded(b *strings.Builder) {
	pending := d.crowds(func(m result.Measurement) int { return m.Pending })
	foreign := d.crowds(func(m result.Measurement) int { return m.Foreign })
	if len(pending)+len(foreign) == 0 {
		return
	}
	for _, shape := range append(d.shapes(true), d.shapes(false)...) {
		t := table{head: []string{"system", "alone"}}
		for _, n := range pending {
			t.head = append(t.head, number(float64(n))+" pending")
		}
		for _, n := range foreign {
			t.head = append(t.head, number(float64(n))+" foreign keys")
		}
		for _, s := range d.Systems {
			row := []string{s.Title, d.cell(s.Name, shape, 0, 0).brief()}
			measured := false
			for _, n := range pending {
				row = append(row, d.cell(s.Name, shape, n, 0).brief())
				measured = measured || row[len(row)-1] != "-"
			}
			for _, n := range foreign {
				row = append(row, d.cell(s.Name, shape, 0, n).brief())
				measured = measured || row[len(row)-1] != "-"
			}
			if measured {
				t.add(row...)
			}
		}
		t.write(b, fmt.Sprintf("%s, with other timers pending or other keys in Redis", shape),
			"Lateness p50 / p99 in ms; pending timers are due a day later; foreign keys have a TTL of a day and are "+
				"no timers.")
	}
}

// brief formats p50 / p99, with lost and early firings.
func (c cell) brief() string {
	if len(c) == 0 {
		return "-"
	}
	p50 := c.spread(delivered(func(f *result.Firings) float64 { return f.Consumed.P50 }))
	p99 := c.spread(delivered(func(f *result.Firings) float64 { return f.Consumed.P99 }))
	text := format(p50.Median, 1) + " / " + format(p99.Median, 1)
	if p50.Rounds == 0 {
		text = "nothing fired"
	}
	for i, what := range []string{"undelivered", "early", "repeated"} {
		if n := c.faults()[i]; n != "0" {
			text += ", " + n + " " + what
		}
	}
	return text
}

// armed shows the rate of setting the timers of the delivery workloads.
func (d data) armed(b *strings.Builder) {
	shapes := append(d.shapes(true), d.shapes(false)...)
	if len(shapes) == 0 {
		return
	}
	t := table{head: append([]string{"system"}, shapes...)}
	for _, s := range d.Systems {
		row := []string{s.Title}
		for _, shape := range shapes {
			row = append(row, d.cell(s.Name, shape, 0, 0).text(0,
				func(m *result.Measurement) float64 { return m.Firings.ArmRate }))
		}
		t.add(row...)
	}
	t.write(b, "Timers set per second, before they fire",
		"As fast as one process sets them through the API for many timers, until all are acknowledged; plain `SET`s "+
			"until timerd has adopted them.")
}

func (d data) setting(b *strings.Builder) {
	t := table{head: []string{"way of setting", "per s", "of these not adopted when setting stopped",
		"adopted after ms", "without timerd, per s"}}
	for _, workload := range d.workloads("setting: ") {
		c := d.cell("timerd", workload, 0, 0)
		if len(c) == 0 {
			continue
		}
		t.add(strings.TrimPrefix(workload, "setting: "), c.text(0, named(load.ValueRate)),
			c.text(0, named(load.ValueUnadopted)),
			c.text(0, named(load.ValueCatchUp)), d.workload("events", workload).text(0, named(load.ValueRate)))
	}
	t.write(b, "Setting timers",
		"One process sets, timerd adopts plain `SET`s meanwhile. Without timerd is plain Redis.")
}

// workload returns the rounds of a workload, with the given numbers of pending timers and foreign keys.
func (d data) workload(system, workload string) cell {
	var c cell
	for _, m := range d.Measurements {
		if m.System == system && m.Workload == workload {
			c = append(c, m)
		}
	}
	return c
}

func (d data) storms(b *strings.Builder) {
	t := table{head: []string{"commands", "cancelled per s", "rescheduled per s", "fired although cancelled",
		"rescheduled: p99 ms", "undelivered", "early", "repeated"}}
	for _, workload := range d.workloads("storm: ") {
		c := d.workload("timerd", workload)
		row := []string{
			strings.TrimPrefix(workload, "storm: "), c.text(0, named(load.ValueCancelled)),
			c.text(0, named(load.ValueMoved)),
			c.text(0, named(load.ValueFiredDead)), c.lateness()[1],
		}
		t.add(append(row, c.faults()...)...)
	}
	t.write(b, "Cancelling and rescheduling",
		"timerd; half of the timers are cancelled and half rescheduled, in pipelines of 100 on two connections; the "+
			"latter are then due over 10 s.")
}

func (d data) retries(b *strings.Builder) {
	t := table{head: []string{"attempt", "p50 ms", "p99 ms", "max ms", "undelivered", "early", "repeated"}}
	for _, workload := range d.workloads("retries: ") {
		c := d.workload("timerd", workload)
		t.add(append(append([]string{strings.TrimPrefix(workload, "retries: ")}, c.lateness()[:3]...),
			c.faults()...)...)
	}
	t.write(b, "Retries",
		"timerd; the Go client's consumer fails each event until its third attempt, retried after 1 s each; late by "+
			"the due time in the event.")
}

func (d data) longest(b *strings.Builder) {
	t := table{head: []string{"case", "longest call, ms, in the best round", "median of the rounds"}}
	for _, workload := range d.workloads("longest: ") {
		s := d.workload("timerd", workload).spread(named(load.ValueLongest))
		t.add(strings.TrimPrefix(workload, "longest: "), format(s.Least, 1), format(s.Median, 1))
	}
	t.write(b, "The longest call",
		"The longest time that timerd holds Redis, by deeds of a hostile tenant: the slowest of its scripts, "+
			"functions and commands in Redis's slow log, each time with servers of its own, until every timer has "+
			"fired or become a dead letter. What else runs on the machine can only lengthen it, so the best of the "+
			"rounds is nearest to the truth.")
}

func (d data) idle(b *strings.Builder) {
	t := table{head: []string{"pending", "Redis commands per s", "timerd, % of a core", "Redis, % of a core",
		"NATS, % of a core", "timerd, MiB"}}
	share := func(role string) func(*result.Measurement) float64 {
		return func(m *result.Measurement) float64 { return 100 * m.Usage[role].CPU / m.Values[load.ValueSeconds] }
	}
	var numbers []int
	for _, m := range d.workload("timerd", "idle") {
		if !slices.Contains(numbers, m.Pending) {
			numbers = append(numbers, m.Pending)
		}
	}
	for _, n := range numbers {
		c := d.cell("timerd", "idle", n, 0)
		t.add(format(float64(n), 0), c.text(1, named(load.ValueCommands)), c.text(2, share(rig.RoleTimerd)),
			c.text(2, share(rig.RoleRedis)), c.text(2, share(rig.RoleNATS)),
			c.text(0, func(m *result.Measurement) float64 { return float64(m.Usage[rig.RoleTimerd].RSS) / (1 << 20) }))
	}
	t.write(b, "An idle timerd", "Commands are Redis's own count, within scripts too.")
}

func (d data) memory(b *strings.Builder) {
	t := table{head: []string{"system", "pending", "Redis's memory, bytes per timer",
		"resident memory of all processes, bytes per timer"}}
	for _, s := range d.Systems {
		n := d.mostPending(s.Name, "memory")
		c := d.cell(s.Name, "memory", n, 0)
		if len(c) == 0 {
			continue
		}
		t.add(s.Title, format(float64(n), 0), c.text(0, named(load.ValueBytes)),
			c.text(0, func(m *result.Measurement) float64 {
				sum := 0.0
				for name, v := range m.Values {
					if strings.HasPrefix(name, load.ValueRSS) && !strings.HasSuffix(name, peer.RoleProducer) {
						sum += v
					}
				}
				return sum
			}))
	}
	t.write(b, "Memory", fmt.Sprintf(
		"Of pending timers with keys of %d bytes and payloads of %d. Redis's is its used_memory, with the trigger "+
			"key and the allocator's overhead. "+
			"NATS, RabbitMQ and PostgreSQL keep timers on disk too.", firing.KeyBytes, firing.PayloadBytes))
}

func (d data) settings(b *strings.Builder) {
	t := table{head: []string{"system", "`-systems`", "settings"}}
	for _, s := range d.Systems {
		t.add(s.Title, "`"+s.Name+"`", s.Settings)
	}
	t.write(b, "Servers and settings", "")
}

func (d data) missing(b *strings.Builder) {
	for _, of := range []struct {
		what string
		list []result.Skipped
	}{{"Not measured", d.Skipped}, {"Failed", d.Failed}} {
		for _, s := range of.list {
			fmt.Fprintf(b, "**%s:** %s: %s\n\n", of.what, s.What, strings.Join(strings.Fields(s.Reason), " "))
		}
	}
}
