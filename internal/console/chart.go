package console

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Charts are drawn here, in the units of their view box, with few marks and one label. The style sheet has the colours.
const (
	chartLeft   = 44.0
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
	Most   *Label // of the largest value
	Empty  string // why there is nothing to draw
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

// dueChart draws how many timers become due in each minute.
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
			X: at(chartLeft + float64(i)*room + room*0.09), Width: at(room * 0.82), Y: at(chartBottom - h), Height: at(h),
			Most: i == mostAt, Title: counted(m.Due, "timer", "timers") + " due from " + m.Begin.UTC().Format(minuteLayout),
		})
	}
	begin, middle, end := minutes[0].Begin.UTC(), minutes[len(minutes)/2].Begin.UTC(), minutes[len(minutes)-1].Begin.UTC().Add(time.Minute)
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

// shortNumber writes a number of an axis.
func shortNumber(v float64) string {
	switch {
	case v >= 1e6:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", v/1e6), ".0") + "M"
	case v >= 1e4:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", v/1e3), ".0") + "k"
	}
	return grouped(int64(math.Round(v)))
}

// latenessWindow is how far back the lateness is drawn.
const latenessWindow = 15 * time.Minute

// latenessChart draws the lateness of the firings of the last minutes.
func latenessChart(points []PointView, now time.Time) Chart {
	c := Chart{}
	most := time.Duration(0)
	known := 0
	for _, p := range points {
		if p.P99 != nil {
			known++
			most = max(most, time.Duration(*p.P99))
		}
	}
	if known == 0 {
		c.Empty = "Nothing has fired in the last 15 minutes."
		return c
	}
	unit, name := time.Millisecond, "ms"
	if most >= 10*time.Second {
		unit, name = time.Second, "s"
	}
	top, step := niceTop(float64(most) / float64(unit))
	c.grid(top, step, func(v float64) string {
		text := fmt.Sprintf("%g", math.Round(v*100)/100)
		if v >= top-step/2 {
			text += " " + name
		}
		return text
	})
	begin := now.Add(-latenessWindow)
	x := func(i int) float64 {
		part := float64(points[i].At.Sub(begin)) / float64(latenessWindow)
		return chartLeft + min(max(part, 0), 1)*(chartRight-chartLeft)
	}
	y := func(d *lateness) float64 {
		return chartBottom - float64(*d)/float64(unit)/top*(chartBottom-chartTop)
	}
	c.P50 = polylines(points, func(i int, p PointView) string { return at(x(i)) + "," + at(y(p.P50)) })
	c.P99 = polylines(points, func(i int, p PointView) string { return at(x(i)) + "," + at(y(p.P99)) })
	c.Labels = []Label{
		{at(chartLeft), at(chartBottom + 18), "start", begin.UTC().Format(minuteLayout)},
		{at(chartRight), at(chartBottom + 18), "end", "now"},
	}
	for i, p := range slices.Backward(points) {
		if p.P99 != nil {
			above, below := max(y(p.P99)-7, chartTop-4), min(y(p.P50)+14, chartBottom-4)
			if below-above > 16 {
				c.Labels = append(c.Labels, Label{at(x(i)), at(below), "end", "p50"})
			}
			c.Most = &Label{at(x(i)), at(above), "end", "p99"}
			c.Title = fmt.Sprintf("Lateness in the last 15 minutes: lately p50 %s, p99 %s, at most p99 %s", p.P50, p.P99, ms(most))
			break
		}
	}
	return c
}

// polylines returns the points of lines that end where a value is missing. A single point is a short line, so that it is visible.
func polylines(points []PointView, place func(int, PointView) string) []string {
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
	for i, p := range points {
		if p.P99 == nil {
			flush()
			continue
		}
		line = append(line, place(i, p))
	}
	flush()
	return lines
}

// MinuteView is how many timers become due within a minute.
type MinuteView struct {
	Begin time.Time `json:"begin"`
	Due   int64     `json:"due"`
}

// PointView is how late firings were in a stretch of time.
type PointView struct {
	At    time.Time `json:"at"`
	Fired int64     `json:"fired"`
	P50   *lateness `json:"p50"` // null where nothing fired
	P99   *lateness `json:"p99"`
}
