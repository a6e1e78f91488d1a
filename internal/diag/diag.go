// Package diag is how timerd says what is wrong and what to do about it: in doctor, status, the console and /readyz alike.
package diag

import (
	"fmt"
	"slices"
)

// Level says how bad a finding is.
type Level string

// The levels.
const (
	OK   Level = "ok"
	Warn Level = "warn" // timerd works, and something is to be looked at, or it keeps less than it could
	Fail Level = "fail" // timers do not fire, timerd does not start or keep its guarantees, or the state cannot be told
)

// Finding is what one check found.
type Finding struct {
	Level Level  `json:"level"`
	Check string `json:"check"`
	Text  string `json:"text"`          // what is so
	Fix   string `json:"fix,omitempty"` // what to do, mostly a command or a line of configuration
}

// String returns what is so, and what to do.
func (f Finding) String() string {
	if f.Fix == "" {
		return f.Text
	}
	return f.Text + toFix + f.Fix
}

// toFix stands between what is wrong and what to do.
const toFix = "; to fix it: "

// Findings are what checks found, in the order in which they did.
type Findings []Finding

// OK adds that a check found nothing wrong.
func (f *Findings) OK(check, format string, args ...any) {
	*f = append(*f, Finding{Level: OK, Check: check, Text: fmt.Sprintf(format, args...)})
}

// Warn adds what is to be looked at, and what to do.
func (f *Findings) Warn(check, fix, format string, args ...any) {
	*f = append(*f, Finding{Warn, check, fmt.Sprintf(format, args...), fix})
}

// Fail adds what is wrong, and what to do.
func (f *Findings) Fail(check, fix, format string, args ...any) {
	*f = append(*f, Finding{Fail, check, fmt.Sprintf(format, args...), fix})
}

// Add adds one.
func (f *Findings) Add(one Finding) { *f = append(*f, one) }

// Failed tells whether one of them fails.
func (f Findings) Failed() bool {
	return slices.ContainsFunc(f, func(one Finding) bool { return one.Level == Fail })
}

// Fixable is an error that says what to do about it. Its text ends with that.
type Fixable interface {
	error
	Problem() string // the text without what to do
	Fix() string
}

// Text returns the text of a Fixable.
func Text(m Fixable) string { return m.Problem() + toFix + m.Fix() }

// Fault is a [Fixable] that stands for another error.
type Fault struct {
	What   string // the problem
	Remedy string // the fix
	Err    error  // why; nil for no other reason
}

func (f *Fault) Error() string { return Text(f) }
func (f *Fault) Unwrap() error { return f.Err }

// Problem returns What.
func (f *Fault) Problem() string { return f.What }

// Fix returns Remedy.
func (f *Fault) Fix() string { return f.Remedy }

// Wrap says in front of an error what it is about. What to do stays to be told from the rest.
func Wrap(what string, err error) error {
	if m, ok := err.(Fixable); ok { //nolint:errorlint // within another error or among others it does not say all
		return &Fault{what + ": " + m.Problem(), m.Fix(), err}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Of returns the failure that an error is. An error that is not [Fixable] as a whole gets the given fix.
func Of(check string, err error, otherwise string) Finding {
	if m, ok := err.(Fixable); ok { //nolint:errorlint // within another error or among others it does not say all
		return Finding{Fail, check, m.Problem(), m.Fix()}
	}
	return Finding{Fail, check, Plain(err).Error(), otherwise}
}

// The names of the checks of an installation's state.
const (
	CheckRedis      = "redis"
	CheckRights     = "redis rights"
	CheckCluster    = "redis cluster"
	CheckNATS       = "nats"
	CheckStreams    = "streams"
	CheckLosses     = "lost data"
	CheckUnattended = "unattended"
	CheckTimerds    = "timerds"
	CheckHolds      = "holds"
	CheckAudits     = "audits"
	CheckOwed       = "owed"
	CheckAside      = "set aside"
	CheckWebhooks   = "webhooks"
	CheckHosts      = "webhook hosts"
	CheckConsumers  = "consumers"
	CheckLetters    = "dead letters"
)

// Checks returns them.
func Checks() []string {
	return []string{
		CheckRedis, CheckRights, CheckCluster, CheckNATS, CheckStreams, CheckLosses, CheckUnattended, CheckTimerds, CheckHolds, CheckAudits,
		CheckOwed, CheckAside, CheckWebhooks, CheckHosts, CheckConsumers, CheckLetters,
	}
}

// Has tells whether one of them is of a check and of a level.
func (f Findings) Has(level Level, checks ...string) bool {
	return slices.ContainsFunc(f, func(one Finding) bool { return one.Level == level && slices.Contains(checks, one.Check) })
}
