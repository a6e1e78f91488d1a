// Package diag has the single form of a problem and its fix: in doctor, status, the console and /readyz.
package diag

import (
	"fmt"
	"slices"
)

// Level is the severity of a finding.
type Level string

// The levels.
const (
	OK   Level = "ok"
	Warn Level = "warn" // timerd works, but with less protection, or with something for an operator to look at
	// timers do not fire, timerd does not start or keep its guarantees, or the state cannot be determined
	Fail Level = "fail"
)

// Finding is the result of one check.
type Finding struct {
	Level Level  `json:"level"`
	Check string `json:"check"`
	Text  string `json:"text"`          // the state, or the problem
	Fix   string `json:"fix,omitempty"` // what to do, mostly a command or a line of configuration
}

// String returns the text and the fix.
func (f Finding) String() string {
	if f.Fix == "" {
		return f.Text
	}
	return f.Text + toFix + f.Fix
}

// toFix separates the problem from the fix in a text.
const toFix = "; to fix it: "

// Findings are the results of checks, in the order of the checks. The check that adds a finding need not name it: [Run]
// does.
type Findings []Finding

// OK adds a finding that reports no problem.
func (f *Findings) OK(format string, args ...any) {
	*f = append(*f, Finding{Level: OK, Text: fmt.Sprintf(format, args...)})
}

// Warn adds a warning with its fix; without one, the row of the table has it.
func (f *Findings) Warn(fix, format string, args ...any) {
	*f = append(*f, Finding{Level: Warn, Text: fmt.Sprintf(format, args...), Fix: fix})
}

// Fail adds a failure with its fix; without one, the row of the table has it.
func (f *Findings) Fail(fix, format string, args ...any) {
	*f = append(*f, Finding{Level: Fail, Text: fmt.Sprintf(format, args...), Fix: fix})
}

// Add adds a finding.
func (f *Findings) Add(one Finding) { *f = append(*f, one) }

// Failed reports whether one of the findings is a failure.
func (f Findings) Failed() bool {
	return slices.ContainsFunc(f, func(one Finding) bool { return one.Level == Fail })
}

// Fixable is an error whose text ends with its fix.
type Fixable interface {
	error
	Problem() string // the text without the fix
	Fix() string
}

// Text returns the text of a Fixable.
func Text(m Fixable) string { return m.Problem() + toFix + m.Fix() }

// Fault is a [Fixable] that stands for another error.
type Fault struct {
	What   string // the problem
	Remedy string // the fix
	Err    error  // the reason; may be nil
}

func (f *Fault) Error() string { return Text(f) }
func (f *Fault) Unwrap() error { return f.Err }

// Problem returns What.
func (f *Fault) Problem() string { return f.What }

// Fix returns Remedy.
func (f *Fault) Fix() string { return f.Remedy }

// Wrap puts a text before an error's problem. The fix of a [Fixable] stays separate.
func Wrap(what string, err error) error {
	if m, ok := err.(Fixable); ok { //nolint:errorlint // wrapped or joined with others it is incomplete
		return &Fault{what + ": " + m.Problem(), m.Fix(), err}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// WithFix returns an error with its own fix, or else the given one.
func WithFix(err error, otherwise string) error {
	if m, ok := err.(Fixable); ok { //nolint:errorlint // wrapped or joined with others it is incomplete
		return m
	}
	return &Fault{err.Error(), otherwise, err}
}

// Of returns a failure as the finding for an error. An error that is not [Fixable] as a whole gets the given fix.
func Of(check string, err error, otherwise string) Finding {
	if m, ok := err.(Fixable); ok { //nolint:errorlint // wrapped or joined with others it is incomplete
		return Finding{Fail, check, m.Problem(), m.Fix()}
	}
	return Finding{Fail, check, Plain(err).Error(), otherwise}
}

// The names of checks used outside their rows. The rows are in the tables of internal/status and internal/doctor.
const (
	CheckOverdue    = "overdue"
	CheckRedis      = "redis"
	CheckRights     = "redis rights"
	CheckCluster    = "redis cluster"
	CheckDatabases  = "other databases"
	CheckNATS       = "nats"
	CheckStreams    = "streams"
	CheckLosses     = "lost data"
	CheckRestored   = "restored redis"
	CheckCounting   = "loss detection"
	CheckGuards     = "guards"
	CheckUnattended = "unattended"
	CheckTimerds    = "timerds"
	CheckSilent     = "silent timerds"
	CheckClock      = "redis clock"
	CheckAccount    = "account"
	CheckHolds      = "holds"
	CheckAudits     = "audits"
	CheckAside      = "set aside"
	CheckWebhooks   = "webhooks"
	CheckHosts      = "webhook hosts"
	CheckConsumers  = "consumers"
	CheckLetters    = "dead letters"
)

// Of returns the findings of a level.
func (f Findings) Of(level Level) Findings {
	return slices.DeleteFunc(slices.Clone(f), func(one Finding) bool { return one.Level != level })
}

// Has reports whether one of the findings has the level and one of the checks.
func (f Findings) Has(level Level, checks ...string) bool {
	return slices.ContainsFunc(f, func(one Finding) bool {
		return one.Level == level &&
			slices.Contains(checks, one.Check)
	})
}
