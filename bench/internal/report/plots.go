package report

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/timerd-io/timerd/bench/internal/load"
	"github.com/timerd-io/timerd/bench/internal/result"
)

// Plot is a chart and the name of its file.
type Plot struct {
	File string
	Alt  string
	Chart
}

// least is the shortest lateness in a plot, in ms. Early firings are drawn there.
const least = 0.1

// Plots returns the plots for which the run has measurements.
func Plots(run *result.Run) []Plot {
	d := data{run}
	var plots []Plot
	for _, shape := range d.shapes(true) {
		plots = append(plots, d.lateness(shape))
	}
	for _, shape := range d.shapes(true) {
		plots = append(plots, d.byPending(shape))
	}
	for _, shape := range d.shapes(false) {
		plots = append(plots, d.drain(shape))
	}
	for _, n := range d.ofMillions() {
		plots = append(plots, n.lateness())
	}
	plots = append(plots, d.installationsLateness(), d.cores(), d.cpu())
	var drawn []Plot
	for _, p := range plots {
		for i := range p.Series {
			p.Series[i].Name = strings.ReplaceAll(p.Series[i].Name, "`", "")
		}
		if len(p.Series) > 0 {
			drawn = append(drawn, p)
		}
	}
	return drawn
}

// WritePlots writes the plots into a directory. It returns Markdown that shows them, with links relative to the
// directory of the document.
func WritePlots(run *result.Run, dir, document string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // a directory of documents
		return "", err
	}
	var markdown strings.Builder
	for _, p := range Plots(run) {
		path := filepath.Join(dir, p.File)
		svg, err := p.SVG()
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(path, svg, 0o644); err != nil { //nolint:gosec // a document
			return "", err
		}
		link, err := filepath.Rel(filepath.Dir(document), path)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&markdown, "![%s](%s)\n\n", p.Alt, filepath.ToSlash(link))
	}
	return markdown.String(), nil
}

// middle returns the round with the median p99.
func (c cell) middle() *result.Measurement {
	p99 := delivered(func(f *result.Firings) float64 { return f.Consumed.P99 })
	median := c.spread(p99).Median
	var best *result.Measurement
	for i := range c {
		if v := p99(&c[i]); v >= median && (best == nil || v < p99(best)) {
			best = &c[i]
		}
	}
	return best
}

func (d data) lateness(shape string) Plot {
	p := Plot{File: "lateness-" + shape + ".svg", Alt: "Share of timers received by lateness", Chart: Chart{
		Title: "Lateness at the consumer, " + shape + ", nothing else pending",
		X:     Axis{Label: "ms after the due time (log)", Log: true, Least: least},
		Y:     Axis{Label: "share of all timers received, %"},
	}}
	for _, s := range d.Systems {
		m := d.cell(s.Name, shape, 0, 0).middle()
		if m == nil {
			continue
		}
		p.Series = append(p.Series, Series{Name: s.Title, XY: shares(m.Firings)})
	}
	return p
}

// shares returns the share of all timers received, in %, by lateness.
func shares(f *result.Firings) [][2]float64 {
	share := float64(f.Delivered) / float64(f.Timers)
	var points [][2]float64
	for i, q := range result.CDFQuantiles() {
		points = append(points, [2]float64{max(f.Consumed.Quantiles[i], least), 100 * q * share})
	}
	return points
}

func (d million) lateness() Plot {
	pending := number(float64(d.pending))
	p := Plot{File: "lateness-" + pending + "-pending.svg", Alt: "Share of timers received by lateness, " + pending +
		" pending", Chart: Chart{
		Title: "Lateness at the consumer, " + d.spread + ", " + pending + " other timers pending",
		X:     Axis{Label: "ms after the due time (log)", Log: true, Least: least},
		Y:     Axis{Label: "share of all timers received, %"},
	}}
	for _, u := range d.conditions() {
		if m := u.middle(); m != nil {
			p.Series = append(p.Series, Series{Name: u.name, XY: shares(m.Firings)})
		}
	}
	return p
}

func (d data) cores() Plot {
	p := Plot{File: "cores.svg", Alt: "Cores of each process by rate", Chart: Chart{
		Title: "Cores that timerd, its servers and the consumer take",
		X:     Axis{Label: "timers fired per second (log)", Log: true, Least: 10}, Y: Axis{Label: "cores"},
	}}
	for _, role := range roles() {
		line := Series{Name: role[1], Marks: true}
		for _, workload := range d.workloads(load.RatesPrefix) {
			c := d.cell(timerd, workload, 0, 0)
			line.XY = append(line.XY, [2]float64{
				c.spread(named(load.ValueRate)).Median, c.spread(
					func(m *result.Measurement) float64 { return m.CoresFiring(role[0]) }).Median,
			})
		}
		if len(line.XY) > 0 {
			p.Series = append(p.Series, line)
		}
	}
	return p
}

func (d data) byPending(shape string) Plot {
	p := Plot{File: "pending-" + shape + ".svg", Alt: "p99 lateness by the number of pending timers", Chart: Chart{
		Title: "p99 of the firings, " + shape + ", by other pending timers",
		X:     Axis{Label: "other timers pending (log; none at the left edge)", Log: true, Least: 10_000},
		Y:     Axis{Label: "p99 lateness, ms (log)", Log: true, Least: least},
	}}
	counts := d.crowds(func(m result.Measurement) int { return m.Pending })
	for _, s := range d.Systems {
		line := Series{Name: s.Title, Marks: true}
		for _, n := range append([]int{0}, counts...) {
			if m := d.cell(s.Name, shape, n, 0).middle(); m != nil {
				line.XY = append(line.XY, [2]float64{float64(n), max(m.Firings.Consumed.P99, least)})
			}
		}
		if len(line.XY) > 1 {
			p.Series = append(p.Series, line)
		}
	}
	return p
}

func (d data) drain(shape string) Plot {
	p := Plot{File: "drain-" + shape + ".svg", Alt: "Timers received since they were due", Chart: Chart{
		Title: "Draining timers due at one instant, " + shape,
		X:     Axis{Label: "ms after the due time (log)", Log: true, Least: 1}, Y: Axis{Label: "timers received"},
	}}
	for _, s := range d.Systems {
		m := d.cell(s.Name, shape, 0, 0).middle()
		if m == nil {
			continue
		}
		line := Series{Name: s.Title}
		for _, point := range m.Firings.Curve {
			line.XY = append(line.XY, [2]float64{max(point.Ms, 1), float64(point.N)})
		}
		p.Series = append(p.Series, line)
	}
	return p
}

func (d data) cpu() Plot {
	p := Plot{File: "cpu.svg", Alt: "CPU time per firing by rate", Chart: Chart{
		Title: "CPU time of all processes for each firing",
		X:     Axis{Label: "timers fired per second (log)", Log: true, Least: 1},
		Y:     Axis{Label: "µs (log)", Log: true, Least: 1},
	}}
	for _, s := range d.Systems {
		line := Series{Name: s.Title, Marks: true}
		for _, shape := range append(d.shapes(true), d.shapes(false)...) {
			m := d.cell(s.Name, shape, 0, 0).middle()
			if m == nil {
				continue
			}
			rate := float64(m.Firings.Delivered) * 1000 / max(m.Firings.Spread+m.Firings.Drained, 1)
			line.XY = append(line.XY, [2]float64{rate, max(m.CPUPerFiring(), 1)})
		}
		slices.SortFunc(line.XY, func(a, b [2]float64) int { return cmp.Compare(a[0], b[0]) })
		if len(line.XY) > 0 {
			p.Series = append(p.Series, line)
		}
	}
	return p
}
