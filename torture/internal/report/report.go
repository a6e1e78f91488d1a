// Package report shows a verdict to people.
package report

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/timerd-io/timerd/torture/internal/checker"
	"github.com/timerd-io/timerd/torture/internal/history"
)

// shown is the number of violations reported in full.
const shown = 20

// Write writes a verdict as a table, with the tales of the first violations.
func Write(w io.Writer, r *checker.Report) error {
	for i, v := range r.Violations {
		if i == shown {
			fmt.Fprintf(w, "… and %d more violations\n\n", len(r.Violations)-shown)
			break
		}
		fmt.Fprintf(w, "%s: %s: %s\n", strings.ToUpper(string(v.Class)), v.Key, v.Text)
		for _, line := range v.Tale {
			fmt.Fprintf(w, "    %s\n", line)
		}
		fmt.Fprintln(w)
	}
	for _, f := range r.Unready {
		fmt.Fprintf(w, "NOT RECOVERED: timerds %v, deliverers %v after %s at %d\n", f.Timerds, f.Deliverers, f.Kind,
			f.From)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "seed %d, %s, %d timerds\n", r.Run.Seed, r.Run.Shape, r.Run.Timerds)
	for _, kind := range r.Run.LeftOut {
		fmt.Fprintf(t, "left out: the fault %q\n", kind)
	}
	fmt.Fprintln(t)
	operations(t, r)
	holds(t, r)
	lateness(t, r)
	innocents(t, r)
	webhooks(t, r)
	verdict(t, r)
	return t.Flush()
}

func operations(t io.Writer, r *checker.Report) {
	fmt.Fprintln(t, "operation\tok\tfailed\tunknown\tfirings judged strictly")
	for _, kind := range slices.Sorted(maps.Keys(r.Ops)) {
		n := r.Ops[kind]
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\n", kind, n[history.OK], n[history.Failed], n[history.Unknown],
			r.Judged[kind])
	}
	fmt.Fprintln(t)
}

// holds shows the commands about holds, and the timers with an unusual end.
func holds(t io.Writer, r *checker.Report) {
	fmt.Fprintln(t, "command\tok\tunknown\t\t")
	for _, kind := range slices.Sorted(maps.Keys(r.Holds)) {
		n := r.Holds[kind]
		fmt.Fprintf(t, "%s\t%d\t%d\n", kind, n[history.OK], n[history.Unknown])
	}
	e := r.Ends
	fmt.Fprintf(t, "\ndue while held, and fired\t%d\n", e.Held)
	fmt.Fprintf(t, "released at a rate\t%d\n", e.Spaced)
	fmt.Fprintf(t, "shifted\t%d\n", e.Shifted)
	fmt.Fprintf(t, "dead letters of a resume\t%d\n", e.Buried)
	fmt.Fprintf(t, "dead letters of late timers\t%d\n", e.TooLate)
	fmt.Fprintf(t, "forgotten\t%d\n", e.Dropped)
	fmt.Fprintf(t, "stopped by guards\t%d\n\n", e.Guarded)
}

// lateness shows the lateness of firings, by the fault at their due times.
func lateness(t io.Writer, r *checker.Report) {
	late := map[string][]int64{}
	for _, s := range r.Lateness {
		late[s.Phase] = append(late[s.Phase], s.Late)
	}
	phases := map[string]bool{checker.Calm: true}
	for kind := range r.Faults {
		phases[kind] = true
	}
	fmt.Fprintln(t, "due in\tfaults\tfirings\tlate p50\tp99\tmax, ms")
	for _, phase := range slices.SortedFunc(maps.Keys(phases), order) {
		all := late[phase]
		slices.Sort(all)
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\t%s\n", phase, r.Faults[phase], len(all), at(all, 0.5), at(all, 0.99),
			at(all, 1))
	}
	fmt.Fprintln(t)
}

// order sorts phases, with calm first.
func order(a, b string) int {
	switch {
	case a == checker.Calm:
		return -1
	case b == checker.Calm:
		return 1
	}
	return cmp.Compare(a, b)
}

// innocents shows the lateness of innocent timers, by the fault that concerned other timers.
func innocents(t io.Writer, r *checker.Report) {
	fmt.Fprintln(t, "innocent, beside\t\tfirings\tlate p50\tp99\tmax, ms")
	row := func(name string, all []int64) {
		fmt.Fprintf(t, "%s\t\t%d\t%s\t%s\t%s\n", name, len(all), at(all, 0.5), at(all, 0.99), at(all, 1))
	}
	row("nothing", r.Innocents.Calm)
	for _, kind := range slices.Sorted(maps.Keys(r.Innocents.Beside)) {
		row(kind, r.Innocents.Beside[kind])
	}
	row("nothing, without need", r.Innocents.CalmExcess)
	row("faults, without need", r.Innocents.BesideExcess)
	if len(r.Repeating.BesideExcess) > 0 {
		row("repeating, nothing", r.Repeating.Calm)
		for _, kind := range slices.Sorted(maps.Keys(r.Repeating.Beside)) {
			row("repeating, "+kind, r.Repeating.Beside[kind])
		}
		row("repeating, nothing, without need", r.Repeating.CalmExcess)
		row("repeating, faults, without need", r.Repeating.BesideExcess)
	}
	fmt.Fprintln(t)
}

// at formats the value that a part of the sorted values does not exceed.
func at(sorted []int64, part float64) string {
	if len(sorted) == 0 {
		return "-"
	}
	return fmt.Sprint(checker.Percentile(sorted, part))
}

func verdict(t io.Writer, r *checker.Report) {
	fmt.Fprintf(t, "messages\t%d\n", r.Messages)
	fmt.Fprintf(t, "of these published in batches\t%d\n", r.Batched)
	fmt.Fprintf(t, "had to fire\t%d\n", r.Strict)
	fmt.Fprintf(t, "must not fire\t%d\n", r.Forbidden)
	fmt.Fprintf(t, "free to fire or not\t%d\n", r.Lenient)
	fmt.Fprintf(t, "messages without a verdict\t%d\n", r.Unjudged)
	fmt.Fprintf(t, "schedule empty at the end\t%v\n", r.Drained)
	for _, class := range checker.Classes() {
		fmt.Fprintf(t, "%s\t%d\n", class, r.Count(class))
	}
}
