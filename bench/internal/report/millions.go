package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/timerd-io/timerd/bench/internal/load"
	"github.com/timerd-io/timerd/bench/internal/result"
	"github.com/timerd-io/timerd/bench/internal/rig"
)

// timerd is the system of the workloads that only timerd has.
const timerd = "timerd"

// roles returns the roles whose use of cores is counted, with their names in tables and plots.
func roles() [][2]string {
	return [][2]string{{rig.RoleRedis, "Redis"}, {rig.RoleTimerd, "timerd"}, {rig.RoleNATS, "NATS"},
		{rig.RoleConsumer, "consumer"}}
}

// coresHead returns the columns of cores.
func coresHead() []string {
	var head []string
	for _, role := range roles() {
		head = append(head, "cores of "+role[1])
	}
	return head
}

// cores formats the use of cores of each role.
func (c cell) cores(of func(m *result.Measurement, roles ...string) float64) []string {
	var row []string
	for _, role := range roles() {
		row = append(row, c.text(2, func(m *result.Measurement) float64 { return of(m, role[0]) }))
	}
	return row
}

func (d data) rates(b *strings.Builder) {
	over := 0.0
	t := table{head: slices.Concat([]string{"firings per s", "p50 ms", "p99 ms", "max ms", "undelivered", "early",
		"repeated"}, coresHead(), []string{"cores together"})}
	for _, workload := range d.workloads(load.RatesPrefix) {
		c := d.cell(timerd, workload, 0, 0)
		over = d.firings(workload).Spread / 1000
		t.add(slices.Concat([]string{c.text(0, named(load.ValueRate))}, c.lateness()[:3], c.faults(),
			c.cores((*result.Measurement).CoresFiring),
			[]string{c.text(2, func(m *result.Measurement) float64 { return m.CoresFiring() })})...)
	}
	t.write(b, "Cores by rate",
		fmt.Sprintf("timerd; timers of `timer_set` due evenly over %.0f s at each rate. A core is a second of CPU "+
			"time per second. "+
			"All processes share the machine's %d cores, so where they are used up, lateness is theirs.", over,
			d.Machine.Cores))
}

// million has the measurements with one number of pending timers.
type million struct {
	data
	pending int
	spread  string // the name of the spread shape
	spike   string // the name of the spike
}

// ofMillions returns the measurements by the number of pending timers.
func (d data) ofMillions() []million {
	var all []million
	for _, m := range d.workload(timerd, load.MillionsMemory) {
		if slices.ContainsFunc(all, func(n million) bool { return n.pending == m.Pending }) {
			continue
		}
		n := million{data: d, pending: m.Pending}
		for _, workload := range d.workloads(load.MillionsEmpty) {
			shape := strings.TrimPrefix(workload, load.MillionsEmpty)
			if d.firings(workload).Spread > 0 {
				n.spread = shape
			} else {
				n.spike = shape
			}
		}
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b million) int { return a.pending - b.pending })
	return all
}

// under is a condition during a measurement.
type under struct {
	name string
	cell
}

// conditions returns the conditions of the measurements of the spread timers.
func (d million) conditions() []under {
	all := []under{
		{"nothing else pending", d.cell(timerd, load.MillionsEmpty+d.spread, 0, 0)},
		{number(float64(d.pending)) + " pending", d.cell(timerd, d.spread, d.pending, 0)},
	}
	for _, workload := range []string{load.MillionsStart, load.MillionsAudit, load.MillionsSave, load.MillionsRewrite,
		load.MillionsList} {
		all = append(all, under{"and during: " + strings.TrimPrefix(workload, load.MillionsPrefix),
			d.cell(timerd, workload, d.pending, 0)})
	}
	return slices.DeleteFunc(all, func(u under) bool { return len(u.cell) == 0 })
}

func (d data) millions(b *strings.Builder) {
	for _, n := range d.ofMillions() {
		n.write(b)
	}
}

func (d million) write(b *strings.Builder) {
	pending := number(float64(d.pending))
	t := table{head: slices.Concat([]string{d.spread, "p50 ms", "p99 ms", "max ms", "nothing received for ms",
		"undelivered", "early", "repeated"}, coresHead())}
	for _, u := range d.conditions() {
		t.add(slices.Concat([]string{u.name}, u.lateness()[:3],
			[]string{u.text(1, delivered(func(f *result.Firings) float64 { return f.Gap }))},
			u.faults(), u.cores((*result.Measurement).Cores))...)
	}
	t.write(b, pending+" timers pending",
		"timerd; all of one run on the same servers, first without the pending timers and then with them. "+
			"Operations longer than a round of the firing timers are measured in several; brackets have the best and "+
			"the worst of these. The cores are all processes', with children of Redis. "+
			"Redis rewrites its append-only file only where that is measured.")

	t = table{head: []string{d.spike, "drained at, per s", "p50 ms", "p99 ms", "last ms", "undelivered", "early",
		"repeated"}}
	for _, u := range []under{
		{"nothing else pending", d.cell(timerd, load.MillionsEmpty+d.spike, 0, 0)},
		{pending + " pending", d.cell(timerd, d.spike, d.pending, 0)},
	} {
		if len(u.cell) > 0 {
			t.add(slices.Concat([]string{u.name, u.text(0, delivered(drainRate))}, u.lateness()[:3], u.faults())...)
		}
	}
	t.write(b, pending+" timers pending: a spike", "")

	t = table{head: []string{"what", "measured", "unit"}}
	const mib, gib = 1 << 20, 1 << 30
	for _, v := range []struct {
		what, workload, value string
		digits                int
		unit                  float64
		name                  string
	}{
		{"setting them, by one process", load.MillionsMemory, load.ValueRate, 0, 1, "per s"},
		{"Redis's memory, `used_memory`", load.MillionsMemory, load.ValueUsed, 1, gib, "GiB"},
		{"Redis's memory, `used_memory_rss`", load.MillionsMemory, load.ValueResident, 1, gib, "GiB"},
		{"Redis's memory, `used_memory`, of each timer", load.MillionsMemory, load.ValueBytes, 0, 1, "bytes"},
		{"append-only file, never rewritten", load.MillionsMemory, load.ValueAOF, 1, gib, "GiB"},
		{"timerd's start until `/readyz` says 200", load.MillionsStart, load.ValueReady, 2, 1, "s"},
		{"timerd's start until its audits are over", load.MillionsStart, load.ValueTook, 1, 1, "s"},
		{"an audit after a gap", load.MillionsAudit, load.ValueTook, 1, 1, "s"},
		{"`timerd ls`, the first 100", load.MillionsPage, load.ValueTook, 2, 1, "s"},
		{"`timerd ls --limit 0`", load.MillionsList, load.ValueTook, 1, 1, "s"},
		{"`BGSAVE`: Redis stands still for the fork", load.MillionsSave, load.ValueFork, 0, 1, "ms"},
		{"`BGSAVE`", load.MillionsSave, load.ValueTook, 1, 1, "s"},
		{"`BGSAVE`: pages copied", load.MillionsSave, load.ValueCopied, 0, mib, "MiB"},
		{"`BGSAVE`: dump.rdb", load.MillionsSave, load.ValueFile, 1, gib, "GiB"},
		{"`BGREWRITEAOF`: Redis stands still for the fork", load.MillionsRewrite, load.ValueFork, 0, 1, "ms"},
		{"`BGREWRITEAOF`", load.MillionsRewrite, load.ValueTook, 1, 1, "s"},
		{"`BGREWRITEAOF`: pages copied", load.MillionsRewrite, load.ValueCopied, 0, mib, "MiB"},
		{"append-only file, rewritten", load.MillionsRewrite, load.ValueFile, 1, gib, "GiB"},
	} {
		measured := d.cell(timerd, v.workload, d.pending, 0)
		text := measured.text(v.digits, func(m *result.Measurement) float64 { return named(v.value)(m) / v.unit })
		if text != "-" {
			t.add(v.what, text, v.name)
		}
	}
	t.write(b, pending+" timers pending: other costs",
		"Payloads of the benchmark are mostly one letter, which a dump and a rewritten file compress; the "+
			"append-only file does not, before it is rewritten.")
}
