package diag

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Check is a row of a table of checks: one question about the facts in S. A row is written once; status, doctor,
// /readyz and the console all show its findings under its name.
type Check[S any] struct {
	// Name is in the lines of status, doctor, /readyz and the console, and the label of timerd_problem.
	Name string
	// Needs are the rows whose failure makes this row meaningless: if one of them has failed, this row is left out.
	Needs []string
	// Causes are the rows whose failure explains this row's findings. They run before it, and its findings name the
	// failed ones.
	Causes []string
	// Ready names the check of a timerd's own readiness that fails together with this row. While that check fails,
	// /readyz leaves out this row's findings.
	Ready string
	// Run adds its findings, or an OK if that is worth a line. The findings get the name of the row.
	Run func(of S, found *Findings)
	// Fix is the fix for findings without one of their own.
	Fix string
}

// Names returns the names of the rows of a table, in their order.
func Names[S any](table []Check[S]) []string {
	names := make([]string, len(table))
	for i, c := range table {
		names[i] = c.Name
	}
	return names
}

// Run runs a table, and returns the findings in the order of its rows. before has findings of other tables; they count
// for Needs and Causes.
func Run[S any](table []Check[S], of S, before Findings) Findings {
	byRow := make([]Findings, len(table))
	all := slices.Clone(before)
	for _, explained := range []bool{false, true} {
		for i, c := range table {
			if len(c.Causes) > 0 != explained || all.Has(Fail, c.Needs...) {
				continue
			}
			byRow[i] = c.find(of, all)
			all = append(all, byRow[i]...)
		}
	}
	return slices.Concat(byRow...)
}

// find runs a row. before has the findings of earlier rows.
func (c *Check[S]) find(of S, before Findings) (found Findings) {
	c.Run(of, &found)
	for i := range found {
		f := &found[i]
		f.Check = c.Name
		if f.Level == OK {
			continue
		}
		f.Fix = cmp.Or(f.Fix, c.Fix)
		if len(c.Causes) > 0 {
			f.Text += c.cause(before)
		}
	}
	return found
}

// cause returns a note with the cause of a finding.
func (c *Check[S]) cause(before Findings) string {
	var failed []string
	for _, name := range c.Causes {
		if before.Has(Fail, name) {
			failed = append(failed, name)
		}
	}
	if len(failed) == 0 {
		return "; no other check finds a cause"
	}
	return fmt.Sprintf("; the cause is under %s", strings.Join(failed, ", "))
}
