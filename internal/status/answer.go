package status

import (
	"slices"
	"time"

	"github.com/timerd-io/timerd/internal/diag"
)

// Answer says whether timers fire on time. It is OK if no timer is overdue and no check fails that firing depends on.
// It is a warning while overdue timers become fewer, and a failure if timers do not fire, may not, or if that is
// unknown.
type Answer struct {
	Level diag.Level    `json:"level"`
	Text  string        `json:"text"`
	Since time.Time     `json:"since,omitzero"` // the earliest due time of the overdue timers
	Cause *diag.Finding `json:"cause,omitempty"`
}

// Answer judges the report by the check of overdue timers and by the checks that explain it.
func (r *Report) Answer() Answer {
	a := Answer{Level: diag.Fail, Cause: r.cause()}
	switch {
	case r.Redis == nil || r.Redis.At.IsZero():
		a.Text = "Not known whether timers fire: Redis does not answer"
	case r.Redis.Overdue != nil:
		a.Since = r.Redis.Overdue.Due.UTC()
		a.Text = "Not firing"
		if !r.Redis.Overdue.Stuck {
			a.Level, a.Text = diag.Warn, "Firing late"
		}
	case r.Problems.Has(diag.Fail, diag.CheckOverdue):
		a.Text = "Not known whether timers fire: the overdue timers cannot be counted"
	case a.Cause == nil:
		a.Level, a.Text = diag.OK, "Firing on time"
	case a.Cause.Level == diag.Warn:
		a.Level, a.Text = diag.Warn, "Nothing fires until a timerd runs"
	default:
		a.Text = "No timer is overdue, but a failure may keep timers from firing"
	}
	return a
}

// cause returns the worst finding that explains why timers do not fire; nil without one.
func (r *Report) cause() *diag.Finding {
	for _, p := range r.Problems {
		if p.Level == diag.Fail && slices.Contains(causesOfOverdue(), p.Check) || p.Check == diag.CheckUnattended {
			return &p
		}
	}
	return nil
}

// causesOfOverdue are the checks whose failure keeps timers from firing.
func causesOfOverdue() []string {
	return slices.Concat(serving(), []string{diag.CheckNATS, diag.CheckStreams, diag.CheckUnattended, "claims",
		ReadyJetStream, "installation"})
}
