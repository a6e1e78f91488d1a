package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/timerd-io/timerd/bench/internal/result"
)

// cell has the measurements of all rounds of one workload on one system.
type cell []result.Measurement

// data has the measurements of a run, sorted.
type data struct {
	*result.Run
}

// cell returns the rounds of a workload on a system.
func (d data) cell(system, workload string, pending, foreign int) cell {
	var c cell
	for _, m := range d.Measurements {
		if m.System == system && m.Workload == workload && m.Pending == pending && m.Foreign == foreign {
			c = append(c, m)
		}
	}
	return c
}

// shapes returns the workloads with firings, measured without any other timers and keys: either the workloads with
// spread due times, or those with one due time.
func (d data) shapes(spread bool) []string {
	var names []string
	for _, m := range d.Measurements {
		if m.Firings != nil && isShape(m.Workload) && (m.Firings.Spread > 0) == spread && m.Pending == 0 &&
			m.Foreign == 0 && !slices.Contains(names, m.Workload) {
			names = append(names, m.Workload)
		}
	}
	return names
}

func isShape(workload string) bool {
	return strings.HasPrefix(workload, "spread-") || strings.HasPrefix(workload, "spike-")
}

// workloads returns the names with a prefix, in the order of the run.
func (d data) workloads(prefix string) []string {
	var names []string
	for _, m := range d.Measurements {
		if strings.HasPrefix(m.Workload, prefix) && !slices.Contains(names, m.Workload) {
			names = append(names, m.Workload)
		}
	}
	return names
}

// crowds returns the numbers, other than 0, of pending timers or of foreign keys in the measurements.
func (d data) crowds(of func(result.Measurement) int) []int {
	var numbers []int
	for _, m := range d.Measurements {
		if n := of(m); n > 0 && isShape(m.Workload) && !slices.Contains(numbers, n) {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// mostPending returns the largest number of pending timers in the measurements of a workload on a system.
func (d data) mostPending(system, workload string) int {
	n := 0
	for _, m := range d.workload(system, workload) {
		n = max(n, m.Pending)
	}
	return n
}

// spread returns the spread of a value over the rounds. Rounds without a number are left out.
func (c cell) spread(value func(*result.Measurement) float64) result.Spread {
	var values []float64
	for i := range c {
		if v := value(&c[i]); !math.IsNaN(v) {
			values = append(values, v)
		}
	}
	return result.NewSpread(values)
}

// text formats the median of a value, with the least and the greatest one if there are several rounds. It returns "-"
// without measurements.
func (c cell) text(digits int, value func(*result.Measurement) float64) string {
	s := c.spread(value)
	switch {
	case s.Rounds == 0:
		return "-"
	case s.Rounds == 1 || format(s.Least, digits) == format(s.Greatest, digits):
		return format(s.Median, digits)
	}
	return fmt.Sprintf("%s (%s–%s)", format(s.Median, digits), format(s.Least, digits), format(s.Greatest, digits))
}

// delivered returns a value of the firings, or NaN if no timer was delivered.
func delivered(value func(*result.Firings) float64) func(*result.Measurement) float64 {
	return func(m *result.Measurement) float64 {
		if m.Firings == nil || m.Firings.Delivered == 0 {
			return math.NaN()
		}
		return value(m.Firings)
	}
}

// named returns a value by its name, or NaN if it was not measured.
func named(name string) func(*result.Measurement) float64 {
	return func(m *result.Measurement) float64 {
		v, ok := m.Values[name]
		if !ok {
			return math.NaN()
		}
		return v
	}
}

// worst returns the greatest count over the rounds. If the count is more than a few, it is given as a share of the
// timers.
func (c cell) worst(count func(*result.Firings) int) string {
	most, of := 0, 1
	measured := false
	for _, m := range c {
		if m.Firings == nil {
			continue
		}
		measured = true
		if n := count(m.Firings); n > most {
			most, of = n, m.Firings.Timers
		}
	}
	switch {
	case !measured:
		return "-"
	case most*100 >= of:
		return fmt.Sprintf("**%.0f %%**", 100*float64(most)/float64(of))
	case most > 0:
		return fmt.Sprintf("**%d**", most)
	}
	return "0"
}

// format formats a number with its thousands separated: 1,234.5.
func format(v float64, digits int) string {
	if math.Abs(v) >= 100 {
		digits = 0
	}
	text := fmt.Sprintf("%.*f", digits, v)
	whole, fraction, _ := strings.Cut(text, ".")
	sign := ""
	if strings.HasPrefix(whole, "-") {
		sign, whole = "-", whole[1:]
	}
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if fraction != "" {
		fraction = "." + fraction
	}
	return sign + whole + fraction
}
