package result_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/bench/internal/result"
)

func TestQuantile(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(i + 1)
	}
	for _, c := range []struct {
		values []float64
		q      float64
		want   float64
	}{
		{hundred, 0, 1},
		{hundred, .5, 50},
		{hundred, .99, 99},
		{hundred, .991, 100},
		{hundred, 1, 100},
		{[]float64{7}, .5, 7},
		{[]float64{1, 2}, .5, 1},
		{[]float64{1, 2}, .51, 2},
		{[]float64{1, 2, 3}, .5, 2},
	} {
		if got := result.Quantile(c.values, c.q); got != c.want {
			t.Errorf("quantile %v of %d values = %v, want %v", c.q, len(c.values), got, c.want)
		}
	}
}

func TestDist(t *testing.T) {
	values := make([]float64, 1000)
	for i := range values {
		values[len(values)-1-i] = float64(i + 1) // not in order
	}
	d := result.NewDist(values)
	if d.P50 != 500 || d.P90 != 900 || d.P99 != 990 || d.P999 != 999 || d.Max != 1000 {
		t.Errorf("distribution of 1 to 1000: %+v", d)
	}
	if len(d.Quantiles) != len(result.CDFQuantiles()) || d.Quantiles[0] != 1 ||
		d.Quantiles[len(d.Quantiles)-1] != 1000 {
		t.Errorf("quantiles %v", d.Quantiles)
	}
	if d := result.NewDist(nil); d.Quantiles != nil || d.Max != 0 {
		t.Errorf("distribution of nothing: %+v", d)
	}
}

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   result.Spread
	}{
		{nil, result.Spread{}},
		{[]float64{3}, result.Spread{Median: 3, Least: 3, Greatest: 3, Rounds: 1}},
		{[]float64{9, 1, 2}, result.Spread{Median: 2, Least: 1, Greatest: 9, Rounds: 3}},
		{[]float64{4, 1, 2, 9}, result.Spread{Median: 3, Least: 1, Greatest: 9, Rounds: 4}},
	} {
		if got := result.NewSpread(c.values); got != c.want {
			t.Errorf("spread of %v = %+v, want %+v", c.values, got, c.want)
		}
	}
}

func TestSaveAndLoad(t *testing.T) {
	run := result.Run{
		Started:  time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC),
		Finished: time.Date(2026, 11, 21, 13, 0, 0, 0, time.UTC),
		Profile:  "full", Machine: result.Machine{CPU: "x", Cores: 2}, Versions: map[string]string{"Redis": "7"},
		Grace:   40,
		Systems: []result.System{{Name: "a", Title: "A"}}, Skipped: []result.Skipped{{What: "b", Reason: "missing"}},
		Measurements: []result.Measurement{{
			System: "a", Workload: "spike", Round: 1, Pending: 5,
			Firings: &result.Firings{Timers: 3, Delivered: 2, Consumed: result.NewDist([]float64{1, 2}),
				Curve: []result.Point{{Ms: 1, N: 1}}},
			Usage:  map[string]result.Usage{"redis": {CPU: .5, RSS: 7}, "worker": {CPU: 1.5}},
			Values: map[string]float64{"rate": 2},
		}},
	}
	path := filepath.Join(t.TempDir(), "sub", "results.json")
	if err := run.Save(path); err != nil {
		t.Fatal(err)
	}
	got, err := result.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(*got, run) {
		t.Errorf("loaded\n%+v\nwant\n%+v", *got, run)
	}
	m := got.Measurements[0]
	if lost := m.Firings.Undelivered(); lost != 1 {
		t.Errorf("%d undelivered, want 1", lost)
	}
	if all, worker := m.CPUPerFiring(), m.CPUPerFiring("worker"); all != 1e6 || worker != .75e6 {
		t.Errorf("%v µs of CPU per firing, %v of the worker; want 1e6 and 0.75e6", all, worker)
	}
}

func TestCores(t *testing.T) {
	m := result.Measurement{
		Firings: &result.Firings{Spread: 9000, Drained: 1000, Window: 20_000},
		Usage:   map[string]result.Usage{"redis": {CPU: 5}, "timerd": {CPU: 10}},
	}
	if all, redis := m.CoresFiring(), m.CoresFiring("redis"); all != 1.5 || redis != .5 {
		t.Errorf("%v cores while timers fired, %v of redis; want 1.5 and 0.5", all, redis)
	}
	if all, redis := m.Cores(), m.Cores("redis"); all != .75 || redis != .25 {
		t.Errorf("%v cores, %v of redis; want 0.75 and 0.25", all, redis)
	}
	if none := (&result.Measurement{}); none.Cores() != 0 || none.CoresFiring() != 0 {
		t.Error("cores of nothing")
	}
}

func TestLoadJoinsParts(t *testing.T) {
	dir := t.TempDir()
	hour := func(h int) time.Time { return time.Date(2026, 11, 21, h, 0, 0, 0, time.UTC) }
	part := func(name string, machine result.Machine, system string, began int) string {
		r := result.Run{
			Started: hour(began), Finished: hour(began + 1), Machine: machine, Systems: []result.System{{Name: system}},
			Measurements: []result.Measurement{{System: system, Workload: "spike", Round: 1},
				{System: system, Workload: "spike", Pending: 9, Round: 1}},
		}
		path := filepath.Join(dir, name)
		if err := r.Save(path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	here := result.Machine{CPU: "x", Cores: 2}
	run, err := result.Load(part("1", here, "a", 13), part("2", here, "b", 14), part("3", here, "a", 10))
	if err != nil {
		t.Fatal(err)
	}
	if !run.Started.Equal(hour(10)) || !run.Finished.Equal(hour(15)) {
		t.Errorf("from %s to %s, want from the earliest start to the latest end", run.Started, run.Finished)
	}
	if len(run.Systems) != 2 {
		t.Errorf("systems %+v, want each once", run.Systems)
	}
	var rounds []int
	for _, m := range run.Measurements {
		rounds = append(rounds, m.Round)
	}
	if want := []int{1, 1, 1, 1, 2, 2}; !reflect.DeepEqual(rounds, want) {
		t.Errorf("rounds %v, want %v", rounds, want)
	}
	if _, err := result.Load(part("1", here, "a", 1), part("4", result.Machine{CPU: "y", Cores: 2}, "a",
		2)); err == nil || !strings.Contains(err.Error(), "another machine") {
		t.Errorf("parts of two machines: %v", err)
	}
	broken := filepath.Join(dir, "broken")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := result.Load(broken); err == nil || !strings.Contains(err.Error(), broken) {
		t.Errorf("a broken file: %v", err)
	}
}
