package console

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Charts are drawn here, in the units of their view box, with few marks and one label. The style sheet has the colours.
const (
	chartLeft   = 60.0
	chartRight  = 590.0
	chartTop    = 16.0
	chartBottom = 136.0
)

// Gridline is a horizontal line with its value.
type Gridline struct{ Y, TextY, Label string }

// Bar is one bar of a chart.
type Bar struct {
	X, Y, Width, Height string
	Most                bool
	Title               string // the tooltip
}

// Legend names a line, with its last value.
type Legend struct{ Class, Text string }

// Label is a text in a chart.
type Label struct{ X, Y, Anchor, Text string }

// Chart is what a template draws.
type Chart struct {
	Title  string // for screen readers
	Grid   []Gridline
	Bars   []Bar
	P50    []string // points of lines, one for each stretch without gaps
	P99    []string
	Labels []Label
	Most   *Label   // of the largest value
	Legend []Legend // of the lines
	Empty  string   // the reason for an empty chart
}

func at(v float64) string { return fmt.Sprintf("%.1f", v) }

// niceTop returns the upper end of an axis: at least most, and a few round steps.
func niceTop(most float64) (top, step float64) {
	if most <= 0 {
		most = 1
	}
	base := math.Pow(10, math.Floor(math.Log10(most)))
	for _, s := range []float64{0.2, 0.5, 1, 2, 5} {
		if step = s * base; most/step <= 4 {
			break
		}
	}
	return math.Ceil(most/step) * step, step
}

// grid adds the lines of an axis.
func (c *Chart) grid(top, step float64, format func(float64) string) {
	for v := 0.0; v <= top+step/2; v += step {
		y := chartBottom - v/top*(chartBottom-chartTop)
		c.Grid = append(c.Grid, Gridline{at(y), at(y + 4), format(v)})
	}
}

// dueChart draws the number of timers due in each minute.
func dueChart(minutes []MinuteView) Chart {
	c := Chart{}
	var most, sum int64
	mostAt := 0
	for i, m := range minutes {
		sum += m.Due
		if m.Due > most {
			most, mostAt = m.Due, i
		}
	}
	if sum == 0 {
		c.Empty = "Nothing is due within the next hour."
		return c
	}
	top, step := niceTop(float64(most))
	if step < 1 {
		step = 1
		top = math.Ceil(top)
	}
	c.grid(top, step, shortNumber)
	room := (chartRight - chartLeft) / float64(len(minutes))
	for i, m := range minutes {
		if m.Due == 0 {
			continue
		}
		h := max(float64(m.Due)/top*(chartBottom-chartTop), 1.5)
		c.Bars = append(c.Bars, Bar{
			X: at(chartLeft + float64(i)*room + room*0.09), Width: at(room * 0.82), Y: at(chartBottom - h),
			Height: at(h),
			Most:   i == mostAt, Title: counted(m.Due, "timer", "timers") + " due from " +
				m.Begin.UTC().Format(minuteLayout),
		})
	}
	begin, middle, end := minutes[0].Begin.UTC(), minutes[len(minutes)/2].Begin.UTC(),
		minutes[len(minutes)-1].Begin.UTC().Add(time.Minute)
	c.Labels = []Label{
		{at(chartLeft), at(chartBottom + 18), "start", begin.Format(minuteLayout)},
		{at((chartLeft + chartRight) / 2), at(chartBottom + 18), "middle", middle.Format(minuteLayout)},
		{at(chartRight), at(chartBottom + 18), "end", end.Format(minuteLayout)},
	}
	text := grouped(most) + " at " + minutes[mostAt].Begin.UTC().Format(minuteLayout)
	x, anchor := chartLeft+(float64(mostAt)+1)*room+4, "start"
	if mostAt > len(minutes)*2/3 {
		x, anchor = chartLeft+float64(mostAt)*room-4, "end"
	}
	c.Most = &Label{at(x), at(chartTop - 5), anchor, text}
	c.Title = fmt.Sprintf("Due per minute in the next hour: %s timers in all, at most %s", grouped(sum), text)
	return c
}

// shortNumber formats a number of an axis.
func shortNumber(v float64) string {
	switch {
	case v >= 1e6:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", v/1e6), ".0") + "M"
	case v >= 1e4:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", v/1e3), ".0") + "k"
	}
	return grouped(int64(math.Round(v)))
}

// latenessWindow is the time span of the lateness chart.
const latenessWindow = 15 * time.Minute

// latenessChart draws the lateness of the firings of the last minutes, on a logarithmic scale: an outage would flatten
// everything else on another one.
func latenessChart(points []PointView, now time.Time) Chart {
	c := Chart{}
	scale := newDecades(points)
	if scale == nil {
		c.Empty = "Nothing has fired in the last 15 minutes."
		return c
	}
	for _, exponent := range scale.steps() {
		y := scale.y(math.Pow(10, float64(exponent)))
		c.Grid = append(c.Grid, Gridline{at(y), at(y + 4), decadeText(exponent)})
	}
	begin := now.Add(-latenessWindow)
	place := func(p PointView, d *lateness) string {
		part := float64(p.At.Sub(begin)) / float64(latenessWindow)
		return at(chartLeft+min(max(part, 0), 1)*(chartRight-chartLeft)) + "," + at(scale.y(inMS(d)))
	}
	c.P50 = polylines(points, func(p PointView) string { return place(p, p.P50) })
	c.P99 = polylines(points, func(p PointView) string { return place(p, p.P99) })
	c.Labels = []Label{
		{at(chartLeft), at(chartBottom + 18), "start", begin.UTC().Format(minuteLayout)},
		{at(chartRight), at(chartBottom + 18), "end", "now"},
	}
	for _, p := range slices.Backward(points) {
		if p.P99 != nil {
			c.Legend = []Legend{{"p50", "p50 " + p.P50.String()}, {"p99", "p99 " + p.P99.String()}}
			c.Title = fmt.Sprintf("Lateness in the last 15 minutes, logarithmic: lately p50 %s, p99 %s, at most p99 %s",
				p.P50, p.P99, ms(time.Duration(scale.most*float64(time.Millisecond))))
			break
		}
	}
	return c
}

// decades is a logarithmic scale, from one power of ten to another one, in ms.
type decades struct {
	low, high int // exponents
	most      float64
}

// newDecades returns a scale for some points; nil if none has a value.
func newDecades(points []PointView) *decades {
	least, most := math.Inf(1), 0.0
	for _, p := range points {
		if p.P99 != nil {
			least, most = min(least, inMS(p.P50)), max(most, inMS(p.P99))
		}
	}
	if math.IsInf(least, 1) {
		return nil
	}
	const shortest = 0.1 // of the counts in heartbeats
	low := int(math.Floor(math.Log10(max(least, shortest))))
	return &decades{low, max(int(math.Ceil(math.Log10(max(most, shortest)))), low+1), most}
}

// steps returns the exponents with a line: each one, or every second of many.
func (d *decades) steps() (exponents []int) {
	step := 1
	if d.high-d.low > 4 {
		step = 2
	}
	for e := d.low; e <= d.high; e += step {
		exponents = append(exponents, e)
	}
	return exponents
}

// y returns the place of a number of ms.
func (d *decades) y(v float64) float64 {
	part := (math.Log10(max(v, math.Pow(10, float64(d.low)))) - float64(d.low)) / float64(d.high-d.low)
	return chartBottom - part*(chartBottom-chartTop)
}

// inMS returns a lateness in ms.
func inMS(l *lateness) float64 { return float64(*l) / float64(time.Millisecond) }

// decadeText formats a power of ten of ms.
func decadeText(exponent int) string {
	if exponent < 3 {
		return strconv.FormatFloat(math.Pow(10, float64(exponent)), 'f', -1, 64) + " ms"
	}
	return grouped(int64(math.Pow(10, float64(exponent-3)))) + " s"
}

// polylines returns the points of lines that end where a value is missing. A single point is a short line, so that it
// is visible.
func polylines(points []PointView, place func(PointView) string) []string {
	var lines []string
	var line []string
	flush := func() {
		if len(line) == 1 {
			line = append(line, line[0])
		}
		if len(line) > 0 {
			lines = append(lines, strings.Join(line, " "))
		}
		line = nil
	}
	for _, p := range points {
		if p.P99 == nil {
			flush()
			continue
		}
		line = append(line, place(p))
	}
	flush()
	return lines
}

// MinuteView is the number of timers due within a minute.
type MinuteView struct {
	Begin time.Time `json:"begin"`
	Due   int64     `json:"due"`
}

// PointView is the lateness of the firings in a span of time.
type PointView struct {
	At    time.Time `json:"at"`
	Fired int64     `json:"fired"`
	P50   *lateness `json:"p50"` // null where nothing fired
	P99   *lateness `json:"p99"`
}
