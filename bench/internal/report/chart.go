package report

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Series is a line of a chart.
type Series struct {
	Name string
	XY   [][2]float64
	// Marks draws a dot at each point: for few points.
	Marks bool
}

// Axis is an axis of a chart.
type Axis struct {
	Label string
	// Log makes it logarithmic; values below Least are drawn there.
	Log   bool
	Least float64
}

// Chart is a plot of lines.
type Chart struct {
	Title  string
	X, Y   Axis
	Series []Series
}

// Geometry of a chart, in px.
const (
	chartWidth, chartHeight                     = 960, 480
	marginLeft, marginTop, marginRight, marginB = 80, 40, 290, 60
	legendLine                                  = 18
	fontSize                                    = 12
)

// palette returns the colours of the series, told apart by people with any colour vision as far as so many can be; the
// dashes tell the rest.
func palette() []string {
	return []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8b4513", "#7f7f7f"}
}

func dashes() []string { return []string{"", "6 3", "2 3"} }

// SVG draws the chart.
func (c *Chart) SVG() []byte {
	var b bytes.Buffer
	height := max(chartHeight, marginTop+marginB+legendLine*len(c.Series))
	x := c.scale(c.X, 0, marginLeft, chartWidth-marginRight)
	y := c.scale(c.Y, 1, float64(height-marginB), marginTop)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="%d" role="img">`+"\n", chartWidth, height, fontSize)
	fmt.Fprintf(&b, "<title>%s</title>\n", escape(c.Title))
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", chartWidth, height)
	fmt.Fprintf(&b, `<text x="%d" y="%d" font-size="%d">%s</text>`+"\n", marginLeft, marginTop-18, fontSize+2, escape(c.Title))
	for _, t := range x.ticks() {
		at := x.at(t)
		fmt.Fprintf(&b, `<path d="M%.1f %d V%d" stroke="#dddddd"/>`, at, marginTop, height-marginB)
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", at, height-marginB+18, number(t))
	}
	for _, t := range y.ticks() {
		at := y.at(t)
		fmt.Fprintf(&b, `<path d="M%d %.1f H%d" stroke="#dddddd"/>`, marginLeft, at, chartWidth-marginRight)
		fmt.Fprintf(&b, `<text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n", marginLeft-8, at+4, number(t))
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", (marginLeft+chartWidth-marginRight)/2, height-marginB+42, escape(c.X.Label))
	middle := (marginTop + height - marginB) / 2
	fmt.Fprintf(&b, `<text x="20" y="%d" text-anchor="middle" transform="rotate(-90 20 %d)">%s</text>`+"\n", middle, middle, escape(c.Y.Label))
	for i, s := range c.Series {
		colour := palette()[i%len(palette())]
		dash := dashes()[i/len(palette())%len(dashes())]
		var points []string
		for _, p := range s.XY {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x.at(p[0]), y.at(p[1])))
		}
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="1.8" stroke-dasharray="%s"/>`+"\n", strings.Join(points, " "), colour, dash)
		if s.Marks {
			for _, p := range s.XY {
				fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"/>`+"\n", x.at(p[0]), y.at(p[1]), colour)
			}
		}
		row := marginTop + legendLine*i + legendLine/2
		left := chartWidth - marginRight + 16
		fmt.Fprintf(&b, `<path d="M%d %d h24" stroke="%s" stroke-width="2.5" stroke-dasharray="%s"/>`, left, row, colour, dash)
		fmt.Fprintf(&b, `<text x="%d" y="%d">%s</text>`+"\n", left+30, row+4, escape(s.Name))
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// axis maps values to px.
type axis struct {
	log       bool
	low, high float64 // of the values
	from, to  float64 // in px
}

// scale makes the axis of a dimension, 0 or 1, wide enough for every series.
func (c *Chart) scale(a Axis, dimension int, from, to float64) axis {
	low, high := math.Inf(1), math.Inf(-1)
	for _, s := range c.Series {
		for _, p := range s.XY {
			low, high = min(low, p[dimension]), max(high, p[dimension])
		}
	}
	if math.IsInf(low, 1) {
		low, high = 0, 1
	}
	if a.Log {
		low = powerBelow(max(low, a.Least))
		high = max(low*10, high)
	} else {
		low = min(0, low)
		if high <= low {
			high = low + 1
		}
	}
	return axis{log: a.Log, low: low, high: high, from: from, to: to}
}

func powerBelow(v float64) float64 {
	if v <= 0 {
		return 1
	}
	return math.Pow(10, math.Floor(math.Log10(v)))
}

func (a axis) at(v float64) float64 {
	share := (v - a.low) / (a.high - a.low)
	if a.log {
		share = math.Log(max(v, a.low)/a.low) / math.Log(a.high/a.low)
	}
	return a.from + share*(a.to-a.from)
}

// ticks returns the values to label: powers of ten, or up to ten round numbers.
func (a axis) ticks() []float64 {
	var ticks []float64
	if a.log {
		for t := a.low; t <= a.high*1.0001; t *= 10 {
			ticks = append(ticks, t)
		}
		return ticks
	}
	step := powerBelow(a.high - a.low)
	for _, factor := range []float64{.1, .2, .5} {
		if (a.high-a.low)/(step*factor) <= 10 {
			step *= factor
			break
		}
	}
	for t := a.low; t <= a.high+step/1000; t += step {
		ticks = append(ticks, t)
	}
	return ticks
}

// number writes a tick: 1, 20k, 1M, 0.01.
func number(v float64) string {
	for _, unit := range []struct {
		least float64
		name  string
	}{{1e6, "M"}, {1e3, "k"}} {
		if math.Abs(v) >= unit.least {
			return strconv.FormatFloat(v/unit.least, 'g', 4, 64) + unit.name
		}
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder takes everything
	return b.String()
}
