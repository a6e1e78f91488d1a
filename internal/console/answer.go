package console

import (
	"fmt"
	"time"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// lateAnswer is the 99th percentile of lateness from which firings count as late.
	lateAnswer = time.Second
	// lateWindow is the time over which it is measured.
	lateWindow = time.Minute
)

// AnswerView is the first line: whether timers fire on time.
type AnswerView struct {
	status.Answer
	Detail string       `json:"detail"`
	Cause  *ProblemView `json:"cause,omitempty"` // in place of the Answer's
	At     time.Time    `json:"-"`
}

// ProblemView is a problem with its paragraph in the runbook.
type ProblemView struct {
	diag.Finding
	Runbook string `json:"runbook"`
}

func newProblemView(f diag.Finding) ProblemView { return ProblemView{f, diag.Runbook(f.Check)} }

// Steps returns the fix in parts.
func (p ProblemView) Steps() []diag.Step { return diag.Steps(p.Fix) }

// answerOf returns the first line.
func answerOf(state *summary, p history.LiveStats) AnswerView {
	if state == nil {
		return AnswerView{Answer: status.Answer{Level: diag.Fail, Text: "Not known whether timers fire"},
			Detail: "Neither Redis nor NATS has answered yet."}
	}
	v := AnswerView{Answer: state.Report.Answer(), At: state.At}
	if c := v.Answer.Cause; c != nil {
		v.Cause = new(newProblemView(*c))
	}
	if !state.Redis() {
		return v
	}
	if o := state.Report.Redis.Overdue; o != nil {
		v.Detail = overdueText(o)
		return v
	}
	v.Detail = latenessText(p)
	if late := latelyLate(p, time.Now()); v.Level == diag.OK && late >= lateAnswer {
		v.Level, v.Text = diag.Warn, "Firing late"
		v.Detail = "One in a hundred of the last minute's firings was over " + about(late) + " late."
	}
	return v
}

// overdueText describes the overdue timers.
func overdueText(o *status.Overdue) string {
	text := counted(o.Timers, "timer is overdue", "timers are overdue")
	if o.Over {
		text = "Over " + text
	}
	switch {
	case o.Stuck:
		return fmt.Sprintf("%s. None was settled for %s.", text, about(o.Stands))
	case o.PerSecond > 0:
		return fmt.Sprintf("%s. They become fewer by %s a second.", text, perSecond(o.PerSecond))
	}
	return text + "."
}

// latenessText describes the firings of the last 15 minutes.
func latenessText(p history.LiveStats) string {
	switch {
	case p.At.IsZero():
		return "No timer is overdue."
	case p.Lateness.Count() == 0:
		return "No timer is overdue. Nothing has fired in the last 15 minutes."
	}
	return fmt.Sprintf("No timer is overdue. In the last 15 minutes half fired within %s, 99 %% within %s.",
		latenessOf(p.Lateness, 0.5), latenessOf(p.Lateness, 0.99))
}

// latelyLate returns the lateness that 99 % of the last minute's firings did not exceed.
func latelyLate(p history.LiveStats, now time.Time) time.Duration {
	var all schedule.Lateness
	for _, point := range p.Points {
		if now.Sub(point.At) < lateWindow {
			all.Merge(point.Lateness, 1)
		}
	}
	return all.Quantile(0.99)
}

// Tone returns the CSS class for the answer.
func (v AnswerView) Tone() string {
	switch v.Level {
	case diag.OK:
		return "good"
	case diag.Warn:
		return "warn"
	}
	return "bad"
}
