// Package result is the result of a run of the benchmark: a JSON file, the source of tables and plots.
package result

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Run is one run of the program.
type Run struct {
	Started  time.Time         `json:"started"`
	Finished time.Time         `json:"finished"`
	Profile  string            `json:"profile"`
	Machine  Machine           `json:"machine"`
	Versions map[string]string `json:"versions"`
	Grace    float64           `json:"graceSeconds"` // a timer that fires later after the last due time is undelivered
	Systems  []System          `json:"systems"`
	Skipped  []Skipped         `json:"skipped,omitempty"`
	Failed   []Skipped         `json:"failed,omitempty"`

	Measurements []Measurement `json:"measurements"`
}

// Machine describes the machine of a run.
type Machine struct {
	CPU       string  `json:"cpu"`
	Cores     int     `json:"cores"`
	MemoryGiB float64 `json:"memoryGiB"`
	Kernel    string  `json:"kernel"`
	OS        string  `json:"os"`
	// Load is the load average of the minute before the run. On a quiet machine it is near 0.
	Load float64 `json:"load"`
}

// System is a system in one configuration.
type System struct {
	Name     string `json:"name"`
	Title    string `json:"title"`
	Settings string `json:"settings"`
}

// Skipped is a skipped measurement, with the reason.
type Skipped struct {
	What   string `json:"what"`
	Reason string `json:"reason"`
}

// Measurement is one workload on one system, once.
type Measurement struct {
	System   string `json:"system"`
	Workload string `json:"workload"`
	Round    int    `json:"round"`
	Pending  int    `json:"pending"` // other timers, due much later
	Foreign  int    `json:"foreign"` // other volatile keys in the Redis

	Firings *Firings `json:"firings,omitempty"`
	// Values are further measured values, by name; the unit is part of the name.
	Values map[string]float64 `json:"values,omitempty"`
	Usage  map[string]Usage   `json:"usage,omitempty"` // by role of the processes
}

// Firings has the results of a workload's timers. All times are in ms.
type Firings struct {
	Timers     int `json:"timers"`
	Delivered  int `json:"delivered"`
	Early      int `json:"early"`
	Duplicates int `json:"duplicates"`

	Spread   float64 `json:"spreadMs"`   // the time over which the timers are due
	ArmRate  float64 `json:"armPerS"`    // timers set per second
	ArmLead  float64 `json:"armLeadMs"`  // from the last set timer to the first due one
	Drained  float64 `json:"drainedMs"`  // from the last due time to the last received firing
	Window   float64 `json:"windowMs"`   // the time span of the counted CPU time
	Consumed Dist    `json:"consumedMs"` // time of reception by the consumer − due time
	// Published is the event's stored time − due time, if there is a stream.
	Published *Dist `json:"publishedMs,omitempty"`
	// Gap is the longest time without a firing between the first firing and the last. For spread timers it is the
	// longest standstill.
	Gap float64 `json:"gapMs"`
	// Curve is the number of firings received up to each time after the first due time.
	Curve []Point `json:"curve"`
}

// Undelivered returns the number of timers not received within the grace: lost, or not fired yet.
func (f *Firings) Undelivered() int { return f.Timers - f.Delivered }

// Point is a number of firings at a time.
type Point struct {
	Ms float64 `json:"ms"`
	N  int     `json:"n"`
}

// Usage is the usage of the processes with one role during a measurement.
type Usage struct {
	CPU float64 `json:"cpuS"`
	RSS int64   `json:"rssBytes"` // the highest sample
}

// CPUPerFiring returns the CPU time of some roles for each delivered firing, in µs. Without roles it counts all.
func (m *Measurement) CPUPerFiring(roles ...string) float64 {
	if m.Firings == nil || m.Firings.Delivered == 0 {
		return 0
	}
	return m.cpu(roles) * 1e6 / float64(m.Firings.Delivered)
}

// CoresFiring returns the CPU time of some roles for each second with firings. Without roles it counts all.
func (m *Measurement) CoresFiring(roles ...string) float64 {
	if m.Firings == nil {
		return 0
	}
	return m.cpu(roles) * 1000 / (m.Firings.Spread + max(m.Firings.Drained, 0))
}

// Cores returns the CPU time of some roles for each second of the measurement. Without roles it counts all.
func (m *Measurement) Cores(roles ...string) float64 {
	if m.Firings == nil {
		return 0
	}
	return m.cpu(roles) * 1000 / m.Firings.Window
}

// cpu returns the CPU time of some roles, in s. Without roles it counts all.
func (m *Measurement) cpu(roles []string) float64 {
	total := 0.0
	for role, u := range m.Usage {
		if len(roles) == 0 || slices.Contains(roles, role) {
			total += u.CPU
		}
	}
	return total
}

// Dist is a distribution by its quantiles, in ms.
type Dist struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
	// Quantiles has the values at the shares CDFQuantiles().
	Quantiles []float64 `json:"quantiles"`
}

// CDFQuantiles returns the shares for which a distribution keeps a value for the plot.
func CDFQuantiles() []float64 {
	var q []float64
	for i := range 100 {
		q = append(q, float64(i)/100)
	}
	return append(q, .99, .995, .999, .9995, 1)
}

// NewDist returns the distribution of values, and sorts the values. Without values it returns the zero Dist.
func NewDist(values []float64) Dist {
	if len(values) == 0 {
		return Dist{}
	}
	slices.Sort(values)
	d := Dist{
		P50: Quantile(values, .5), P90: Quantile(values, .9), P99: Quantile(values, .99), P999: Quantile(values, .999),
		Max: values[len(values)-1],
	}
	for _, q := range CDFQuantiles() {
		d.Quantiles = append(d.Quantiles, Quantile(values, q))
	}
	return d
}

// Quantile returns the quantile q of sorted values, from 0 to 1: at least this share of them is at most the result.
// values must not be empty.
func Quantile[T cmp.Ordered](values []T, q float64) T {
	n := float64(len(values)) * q
	i := int(n)
	if float64(i) == n {
		i--
	}
	return values[min(max(i, 0), len(values)-1)]
}

// Spread is the median, the least and the greatest value of several rounds.
type Spread struct {
	Median, Least, Greatest float64
	Rounds                  int
}

// NewSpread returns the spread of values, and sorts the values. The median of an even number is the mean of the middle
// two.
func NewSpread(values []float64) Spread {
	n := len(values)
	if n == 0 {
		return Spread{}
	}
	slices.Sort(values)
	return Spread{Median: (values[(n-1)/2] + values[n/2]) / 2, Least: values[0], Greatest: values[n-1], Rounds: n}
}

// Save writes the run to a file. The file is complete at any time.
func (r *Run) Save(path string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	temporary := path + ".tmp"
	if err := os.WriteFile(temporary, append(text, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// Load reads runs from files and joins them into one. The result has the machine of the first file, the versions and
// the profile of the last one, and the time from the earliest start to the latest end. All files must be of one
// machine.
func Load(paths ...string) (*Run, error) {
	var all Run
	rounds := make(map[kind]int)
	for _, path := range paths {
		text, err := os.ReadFile(filepath.Clean(path))
		if err != nil {
			return nil, err
		}
		var r Run
		if err := json.Unmarshal(text, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if all.Machine.CPU != "" && (r.Machine.CPU != all.Machine.CPU || r.Machine.Cores != all.Machine.Cores) {
			return nil, fmt.Errorf("%s: its run was made on another machine than the runs before it", path)
		}
		r.Measurements = slices.Concat(all.Measurements, renumber(r.Measurements, rounds))
		systems := slices.Clone(all.Systems)
		for _, s := range r.Systems {
			if !slices.Contains(systems, s) {
				systems = append(systems, s)
			}
		}
		r.Systems = systems
		r.Skipped, r.Failed = slices.Concat(all.Skipped, r.Skipped), slices.Concat(all.Failed, r.Failed)
		if !all.Started.IsZero() {
			r.Machine = all.Machine
			if all.Started.Before(r.Started) {
				r.Started = all.Started
			}
			if all.Finished.After(r.Finished) {
				r.Finished = all.Finished
			}
		}
		all = r
	}
	return &all, nil
}

// kind identifies the rounds of the same measurement.
type kind struct {
	system, workload string
	pending, foreign int
}

// renumber continues the numbers of the existing rounds in new ones.
func renumber(measured []Measurement, rounds map[kind]int) []Measurement {
	for i := range measured {
		m := &measured[i]
		of := kind{m.System, m.Workload, m.Pending, m.Foreign}
		rounds[of]++
		m.Round = rounds[of]
	}
	return measured
}
