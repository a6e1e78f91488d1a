package console

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
)

// aheadShown limits the future attempts shown in a life, apart from the last attempt.
const aheadShown = 3

// lifeOf returns a timer's past, as far as the streams have it, its present and its future. known is set if Redis
// answered.
func (pg *timerPage) lifeOf(v *TimerPage, known bool) []LifeView {
	life := append([]LifeView{}, pastOf(v)...)
	if !known {
		return life
	}
	for _, t := range slices.Backward(v.Timers) {
		life = append(life, presentLine(t, v.At))
	}
	t := v.First()
	switch {
	case t == nil:
		if end, is := endLine(v); is && v.newestPage && v.Events.Away == "" {
			life = append(life, end)
		}
	case v.Repeats != nil && !t.Beside:
		for _, next := range v.Repeats.Next {
			if next.After(t.Due) {
				life = append(life, LifeView{Kind: "ahead", At: &next, Text: "next occurrence",
					Note: v.Repeats.InZone(next)})
			}
		}
	default:
		key, err := decodeRef(v.Ref)
		if err == nil {
			life = append(life, pg.attemptsAhead(key, max(t.Attempt, 1))...)
		}
	}
	return life
}

// pastLine returns the line of an event.
func pastLine(e EventView) LifeView {
	at := e.At
	line := LifeView{Kind: "done", At: &at, Note: e.Position(), Event: &e}
	if e.Trigger != "" {
		line.Note = e.Trigger + " · " + line.Note
	}
	if e.IsDead() {
		line.Kind, line.Text, line.Link = "bad", "Became a dead letter", "/dead/"+e.SeqText()
		line.Why = e.DeadReason
		if e.Fault != "" {
			line.Text, line.Why = "A message among the dead letters that is not an event", e.Fault
		} else if e.LastError != "" {
			line.Why += "; last error: " + e.LastError
		}
		return line
	}
	line.Text = "Fired"
	if e.Fault != "" {
		line.Text, line.Why = "A message on its subject that is not an event", e.Fault
		return line
	}
	if e.Repeat != "" {
		line.Text += ", occurrence " + grouped(e.Occurrence)
	}
	line.Text += ", attempt " + attemptOf(e.Attempt, e.Of)
	if e.Late != nil {
		line.Text += ", " + e.LateText() + " late"
	}
	return line
}

func attemptOf(n, of int) string {
	if of < n {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d of %d", n, of)
}

// presentLine returns the line of a timer's present state.
func presentLine(t InspectedView, now time.Time) LifeView {
	due := t.Due
	line := LifeView{Kind: "now", At: &due}
	what := "Attempt " + attemptOf(max(t.Attempt, 1), t.Of)
	if t.Repeat != "" {
		what = "Occurrence " + grouped(t.Occurrence)
		if t.Attempt > 1 {
			what += ", attempt " + attemptOf(t.Attempt, t.Of)
		}
	}
	switch query.State(t.State) {
	case query.StatePending:
		line.Text = what + " is due " + Moment{t.Due, now}.Relative()
		if t.Beside {
			line.Note = "a retry, beside the newer timer of its key"
		}
	case query.StateHeld:
		line.Text = what + " waits: " + cmp.Or(t.Hold, "its namespace") + " is held"
	case query.StateOwed:
		line.Text = what + " is owed since " + about(now.Sub(t.Due)) + ": no timerd has claimed it"
		if t.Until != nil && t.Until.After(now) {
			line.Note = "tried before; not again before " + Moment{*t.Until, now}.Clock()
		}
	default:
		line.Text = what + " is being published"
		if t.Until != nil {
			line.Note = "a timerd has claimed it until " + Moment{*t.Until, now}.Clock()
		}
	}
	if t.Parked != "" {
		line.Note = "set aside: " + parkedText(t.Parked)
	}
	if t.Unheard {
		line.Note = "no timerd knows the key yet; if that stays so, add its namespace to TIMERD_NAMESPACES"
	}
	if t.Perhaps {
		line.Note += "; its event may be in NATS already"
	}
	return line
}

func parkedText(reason string) string {
	if reason == string(query.ParkedGuard) {
		return "timerd may not read its guard; timerd doctor has the fix"
	}
	if reason == string(query.ParkedRefused) {
		return "NATS refuses its subject; timerd doctor has the fix"
	}
	return "timerd may not read its key; timerd doctor has the fix"
}

// attemptsAhead returns the lines for a timer's retries, as if each attempt failed at once.
func (pg *timerPage) attemptsAhead(key keys.Key, attempt int) []LifeView {
	policy := pg.sources.Policies.For(key)
	delays := policy.Delays()
	if attempt > len(delays) {
		return []LifeView{{Kind: "ahead", In: "then", Text: "if that fails: a dead letter"}}
	}
	var life []LifeView
	var sum time.Duration
	last := len(delays) + 1
	for next := attempt + 1; next <= last; next++ {
		sum += delays[next-2]
		line := LifeView{Kind: "ahead", In: "+ " + about(sum), Text: fmt.Sprintf("attempt %d", next)}
		switch {
		case next == attempt+1:
			line.Text += ", if that fails"
			line.Note = "by the policy " + policy.String()
			if next == last {
				line.Text += "; then a dead letter"
			}
		case next == last:
			line.Text += ", then a dead letter"
		case next > attempt+aheadShown:
			continue
		}
		life = append(life, line)
	}
	return life
}

// timerPage reads everything about a key.
type timerPage struct{ *shared }
