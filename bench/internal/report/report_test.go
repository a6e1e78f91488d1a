package report_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/bench/internal/load"
	"github.com/timerd-io/timerd/bench/internal/report"
	"github.com/timerd-io/timerd/bench/internal/result"
)

// elements parses XML to its end and counts the elements by name.
func elements(t *testing.T, text []byte) map[string]int {
	t.Helper()
	found := make(map[string]int)
	for d := xml.NewDecoder(bytes.NewReader(text)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if start, ok := token.(xml.StartElement); ok {
			found[start.Name.Local]++
		}
	}
}

func TestChartIsWellFormed(t *testing.T) {
	for name, c := range map[string]report.Chart{
		"empty": {},
		"special": {Title: `a < b & "c"`, X: report.Axis{Label: "<x>"},
			Series: []report.Series{{Name: "`d` & <e>", XY: [][2]float64{{1, 2}, {3, 4}}}}},
		"one point": {Series: []report.Series{{XY: [][2]float64{{0, 0}}, Marks: true}}},
		"log of 0": {X: report.Axis{Log: true}, Y: report.Axis{Log: true, Least: .1},
			Series: []report.Series{{XY: [][2]float64{{0, 0}, {5, 1e6}}}}},
		"negative":   {Series: []report.Series{{XY: [][2]float64{{-5, -1}, {5, 1}}}}},
		"many lines": {Series: make([]report.Series, 40)},
	} {
		t.Run(name, func(t *testing.T) {
			svg, err := c.SVG()
			if err != nil {
				t.Fatal(err)
			}
			if found := elements(t, svg); found["svg"] != 1 {
				t.Errorf("elements %v, want one svg", found)
			}
			// Each has a line in the legend, and one in the chart if it has points to connect.
			lines := 0
			for _, s := range c.Series {
				lines++
				if len(s.XY) > 1 {
					lines++
				}
			}
			if drawn := bytes.Count(svg, []byte("stroke-width:1.4")); drawn != lines {
				t.Errorf("%d lines are drawn, want %d, in\n%s", drawn, lines, svg)
			}
			if bytes.Contains(svg, []byte("NaN")) || bytes.Contains(svg, []byte("Inf")) {
				t.Errorf("not a number in\n%s", svg)
			}
		})
	}
}

// points returns the coordinates of the only series' line, which is drawn before its legend.
func points(t *testing.T, c *report.Chart) [][2]float64 {
	t.Helper()
	svg, err := c.SVG()
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(`<path d="M([^"]*)" style="[^"]*stroke-width:1.4`).FindSubmatch(svg)
	if match == nil {
		t.Fatalf("no line in\n%s", svg)
	}
	var all [][2]float64
	for pair := range strings.SplitSeq(string(match[1]), "L") {
		x, y, _ := strings.Cut(pair, ",")
		px, err1 := strconv.ParseFloat(x, 64)
		py, err2 := strconv.ParseFloat(y, 64)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		all = append(all, [2]float64{px, py})
	}
	return all
}

// On a logarithmic axis decades are equally long; on a linear one equal steps are. Up is more.
func TestChartScales(t *testing.T) {
	c := report.Chart{X: report.Axis{Log: true, Least: 1}, Series: []report.Series{
		{XY: [][2]float64{{1, 0}, {10, 50}, {100, 100}}}}}
	p := points(t, &c)
	if first, second := p[1][0]-p[0][0], p[2][0]-p[1][0]; first <= 0 || math.Abs(first-second) > .2 {
		t.Errorf("decades of %v and %v pt", first, second)
	}
	if first, second := p[1][1]-p[0][1], p[2][1]-p[1][1]; first <= 0 || math.Abs(first-second) > .2 {
		t.Errorf("steps of %v and %v pt", first, second)
	}
}

func measured(system string, round int, p50 float64, delivered int) result.Measurement {
	return result.Measurement{
		System: system, Workload: "spread-10k", Round: round,
		Firings: &result.Firings{
			Timers: 10_000, Delivered: delivered, Spread: 30_000, Drained: 5, Early: 3,
			Consumed: result.NewDist([]float64{p50, p50 * 2}), Curve: []result.Point{{Ms: 1, N: 1}, {Ms: 2, N: 2}},
		},
		Usage: map[string]result.Usage{"redis": {CPU: 1, RSS: 1 << 20}, "timerd": {CPU: 1, RSS: 2 << 20}},
	}
}

func sample() *result.Run {
	return &result.Run{
		Profile: "full", Grace: 40, Systems: []result.System{{Name: "timerd", Title: "timerd"},
			{Name: "slow", Title: "a | slow one"}},
		Skipped: []result.Skipped{{What: "BullMQ", Reason: "no node\nin PATH"}},
		Measurements: []result.Measurement{
			measured("timerd", 1, 1, 10_000), measured("timerd", 2, 4, 10_000), measured("timerd", 3, 2, 10_000),
			measured("slow", 1, 1234, 100),
		},
	}
}

func TestTables(t *testing.T) {
	var b strings.Builder
	if err := report.Tables(&b, sample()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"### 10,000 timers over 30 s",
		"| timerd | 2.0 (1.0–4.0) |", // the median, the least and the greatest
		"| 1,234 |",                  // thousands
		"| **99 %** |",               // lost
		"| **3** |",                  // early
		"| 200 | 100 | 3 |",          // µs a firing, of it timerd, MiB
		"**Not measured:** BullMQ: no node in PATH",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "NaN") {
		t.Errorf("not a number in\n%s", b.String())
	}
}

// A measurement repeated within a run, because it takes longer than the timers beside it, adds no round.
func TestMillions(t *testing.T) {
	run := sample()
	add := func(workload string, pending int, p50 float64, values map[string]float64) {
		m := measured("timerd", 1, p50, 10_000)
		m.Workload, m.Pending, m.Values = workload, pending, values
		m.Firings.Window = 2000
		run.Measurements = append(run.Measurements, m)
	}
	add(load.MillionsEmpty+"spread-10k", 0, 1, nil)
	add(load.MillionsMemory, 20_000_000, 0, map[string]float64{load.ValueUsed: 12 << 30})
	add(load.MillionsAudit, 20_000_000, 2, map[string]float64{load.ValueTook: 260})
	add(load.MillionsAudit, 20_000_000, 8, nil)
	run.Measurements[len(run.Measurements)-1].Round = 5 // as [result.Load] numbers them
	add(load.RatesPrefix+"300", 0, 1, map[string]float64{load.ValueRate: 300})
	var b strings.Builder
	if err := report.Tables(&b, run); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"rounds of each: 3 or fewer",
		"### 20M timers pending\n",
		"| nothing else pending | 1.0 | 2.0 |",
		"| and during: audit after a gap | 5.0 (2.0–8.0) |",
		"| 0.50 | 0.50 | 0.00 | 0.00 |\n", // cores of redis, timerd, NATS and the consumer
		"| Redis's memory, `used_memory` | 12.0 | GiB |",
		"| an audit after a gap | 260 | s |",
		"| 300 | 1.0 | 2.0 |",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	files := make(map[string]int)
	for _, p := range report.Plots(run) {
		files[p.File] = len(p.Series)
	}
	if files["lateness-20M-pending.svg"] != 2 || files["cores.svg"] != 4 {
		t.Errorf("plots and their lines: %v", files)
	}
}

func TestUpdateKeepsTheText(t *testing.T) {
	dir := t.TempDir()
	document, plots := filepath.Join(dir, "b.md"), filepath.Join(dir, "plots")
	const before, after = "# Title\n\ntext\n\n<!-- results:begin -->\n", "<!-- results:end -->\n\nmore text\n"
	if err := os.WriteFile(document, []byte(before+"old\n"+after), 0o600); err != nil {
		t.Fatal(err)
	}
	var first []byte
	for range 2 {
		if err := report.Update(sample(), document, plots); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(text, []byte(before)) || !bytes.HasSuffix(text, []byte(after)) ||
			bytes.Contains(text, []byte("old\n")) {
			t.Errorf("the document became\n%s", text)
		}
		if first == nil {
			first = text
		} else if !bytes.Equal(text, first) {
			t.Errorf("again it became\n%s", text)
		}
	}
	links := regexp.MustCompile(`\]\(([^)]*\.svg)\)`).FindAllSubmatch(first, -1)
	if len(links) < 2 {
		t.Errorf("%d plots in\n%s", len(links), first)
	}
	for _, link := range links {
		svg, err := os.ReadFile(filepath.Join(dir, string(link[1])))
		if err != nil {
			t.Error(err)
			continue
		}
		elements(t, svg)
	}
}

func TestReplaceWantsMarkers(t *testing.T) {
	for _, document := range []string{"", "<!-- results:begin -->\n",
		"<!-- results:end -->\n<!-- results:begin -->\n"} {
		if _, err := report.Replace([]byte(document), nil); !errors.Is(err, report.ErrNoMarkers) {
			t.Errorf("%q: %v", document, err)
		}
	}
}
