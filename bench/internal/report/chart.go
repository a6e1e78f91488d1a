package report

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Series is a line of a chart.
type Series struct {
	Name string
	XY   [][2]float64
	// Marks draws a dot at each point. It suits lines with few points.
	Marks bool
}

// Axis is an axis of a chart.
type Axis struct {
	Label string
	// Log makes the axis logarithmic. Values below Least, and values without a logarithm, are drawn at the lower end.
	Log   bool
	Least float64
}

// Chart is a plot of lines.
type Chart struct {
	Title  string
	X, Y   Axis
	Series []Series
}

// Geometry of a chart, in points.
const (
	chartWidth, chartHeight = 720, 360
	legendWidth             = 200
	legendGap               = 12
	fontSize                = 9
)

// palette returns the colours of the series. People with any colour vision can distinguish them as far as possible;
// dashes do the rest.
func palette() []color.Color {
	var colours []color.Color
	for _, rgb := range []uint32{0x0072b2, 0xd55e00, 0x009e73, 0xcc79a7, 0xe69f00, 0x56b4e9, 0x000000, 0x8b4513,
		0x7f7f7f} {
		colours = append(colours, color.NRGBA{R: uint8(rgb >> 16), G: uint8(rgb >> 8), B: uint8(rgb), A: 0xff})
	}
	return colours
}

func dashes() [][]vg.Length { return [][]vg.Length{nil, {5, 2}, {1.5, 2}} }

// SVG draws the chart. Texts stay texts, in a font that looks like Arial if the reader's system has one.
func (c *Chart) SVG() ([]byte, error) {
	canvas := vgsvg.New(chartWidth, chartHeight)
	if err := c.draw(canvas); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return nil, err
	}
	// The library names the font with which it measures texts.
	return bytes.ReplaceAll(b.Bytes(),
		[]byte("font-family:Liberation Sans;font-variant:normal;font-weight:normal;font-style:normal;"),
		[]byte("font-family:Liberation Sans,Arial,sans-serif;")), nil
}

// draw draws the chart, with the legend on its right side.
func (c *Chart) draw(canvas vg.CanvasSizer) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.Title, c.X.Label, c.Y.Label
	p.Title.TextStyle.Font = sans(fontSize + 2)
	p.Title.Padding = legendGap
	for dimension, a := range map[int]*plot.Axis{0: &p.X, 1: &p.Y} {
		c.scale(dimension, a)
		a.Label.TextStyle.Font, a.Tick.Label.Font = sans(fontSize), sans(fontSize)
		a.Padding = 0
	}
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = color.Gray{0xdd}, color.Gray{0xdd}
	p.Add(grid)
	legend := plot.NewLegend()
	legend.Top, legend.Left, legend.TextStyle.Font, legend.Padding = true, true, sans(fontSize), vg.Points(3)
	for i, s := range c.Series {
		thumbnails, err := s.add(p, i)
		if err != nil {
			return fmt.Errorf("%s, %s: %w", c.Title, s.Name, err)
		}
		legend.Add(s.Name, thumbnails...)
	}
	all := draw.New(canvas)
	all.SetColor(color.White)
	all.Fill(all.Rectangle.Path())
	p.Draw(draw.Crop(all, 0, -legendWidth-legendGap, 0, 0))
	legend.Draw(draw.Crop(all, chartWidth-legendWidth, 0, 0, -2*legendGap))
	return nil
}

func sans(size vg.Length) font.Font {
	return font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
}

// add draws a series, the i-th one, and returns its symbol for the legend.
func (s *Series) add(p *plot.Plot, i int) ([]plot.Thumbnailer, error) {
	points := make(plotter.XYs, len(s.XY))
	for j, xy := range s.XY {
		points[j] = plotter.XY{X: max(xy[0], p.X.Min), Y: max(xy[1], p.Y.Min)}
	}
	style := draw.LineStyle{
		Color: palette()[i%len(palette())], Width: vg.Points(1.4), Dashes: dashes()[i/len(palette())%len(dashes())],
	}
	line := &plotter.Line{XYs: points, LineStyle: style}
	if err := plotter.CheckFloats(flatten(points)...); err != nil && len(points) > 0 {
		return nil, err
	}
	p.Add(line)
	if !s.Marks {
		return []plot.Thumbnailer{line}, nil
	}
	marks := &plotter.Scatter{XYs: points, GlyphStyle: draw.GlyphStyle{Color: style.Color, Radius: vg.Points(2.5),
		Shape: draw.CircleGlyph{}}}
	p.Add(marks)
	return []plot.Thumbnailer{line, marks}, nil
}

func flatten(points plotter.XYs) []float64 {
	var all []float64
	for _, p := range points {
		all = append(all, p.X, p.Y)
	}
	return all
}

// scale sets the range of an axis, so that all series fit. The dimension is 0 or 1.
func (c *Chart) scale(dimension int, a *plot.Axis) {
	low, high := math.Inf(1), math.Inf(-1)
	for _, s := range c.Series {
		for _, p := range s.XY {
			low, high = min(low, p[dimension]), max(high, p[dimension])
		}
	}
	if math.IsInf(low, 1) {
		low, high = 0, 1
	}
	settings := []Axis{c.X, c.Y}[dimension]
	if settings.Log {
		a.Min = powerBelow(max(low, settings.Least))
		a.Max = max(a.Min*10, high)
		a.Scale, a.Tick.Marker = plot.LogScale{}, plot.TickerFunc(powersOfTen)
		return
	}
	a.Min = min(0, low)
	a.Max = high
	if high <= a.Min {
		a.Max = a.Min + 1
	}
	a.Tick.Marker = plot.TickerFunc(roundNumbers)
}

func powerBelow(v float64) float64 {
	if v <= 0 {
		return 1
	}
	return math.Pow(10, math.Floor(math.Log10(v)))
}

// powersOfTen returns the ticks of a logarithmic axis. The axis begins at a power of ten.
func powersOfTen(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	for v := low; v <= high*1.0001; v *= 10 {
		ticks = append(ticks, plot.Tick{Value: v, Label: number(v)})
	}
	return ticks
}

// roundNumbers returns the ticks of a linear axis: the library's labelled ticks, in the format of number.
func roundNumbers(low, high float64) []plot.Tick {
	ticks := slices.DeleteFunc(plot.DefaultTicks{}.Ticks(low, high), plot.Tick.IsMinor)
	for i := range ticks {
		ticks[i].Label = number(ticks[i].Value)
	}
	return ticks
}

// number formats the number of a tick: 1, 20k, 1M, 0.01.
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
