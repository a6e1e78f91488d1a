package retry

import (
	"fmt"
	"strings"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// DeadClass is the class of a dead letter's reason.
type DeadClass string

// The classes of dead letters.
const (
	DeadExhausted DeadClass = "exhausted" // the attempts are used up
	DeadMalformed DeadClass = "malformed" // the request is malformed
)

// decision is the outcome of a request: a dead letter, or else a retry.
type decision struct {
	retry  schedule.Retry
	letter *deadLetter
	// postponed is set for a retry of the same attempt.
	postponed bool
	// refuse returns the dead letter of a retry that cannot be set, for a reason.
	refuse func(reason string) *deadLetter
}

// deadLetter is a dead letter to publish, with the place of its request.
type deadLetter struct {
	event   event.Event
	class   DeadClass
	request string // the request's stream and sequence
}

// decide returns the decision about a request. The same request always gets the same decision, as long as the policies
// and the payload limit, in bytes, stay the same.
func decide(prefix string, policies policy.Rules[policy.Retry], maxPayload int, request event.Stored) decision {
	letterOf := func(e event.Event, class DeadClass, reason string) *deadLetter {
		e.DeadReason, e.LastError = reason, strings.Join(request.Values(event.ErrorHeader), "; ")
		return &deadLetter{event: e, class: class, request: request.String()}
	}
	bury := func(e event.Event, class DeadClass, reason string) decision {
		return decision{letter: letterOf(e, class, reason)}
	}
	e, err := parse(prefix, request)
	if err != nil {
		return bury(request.StandIn(prefix, keys.Retry), DeadMalformed,
			event.ReasonMalformed+event.ClipText(err.Error()))
	}
	refuse := func(reason string) *deadLetter {
		refused := e
		refused.ID = event.RefusedID(request) // the event's own id is for the letter after its last attempt
		return letterOf(refused, DeadMalformed, event.ReasonRefused+event.ClipText(reason))
	}
	asked, err := readAsked(request)
	if err == nil && len(e.Data) > maxPayload {
		err = fmt.Errorf("the payload has %d bytes, at most %d are allowed", len(e.Data), maxPayload)
	}
	if err != nil {
		return decision{letter: refuse(err.Error())}
	}
	rule := policies.For(e.Key)
	attempt := e.Attempt
	var delay time.Duration
	if !asked.postponed {
		var ok bool
		if delay, ok = rule.Delay(e.Attempt, e.ID); !ok {
			e.MaxAttempts = rule.MaxAttempts()
			return bury(e, DeadExhausted, event.ReasonExhausted)
		}
		attempt++
	}
	switch {
	case asked.own != nil:
		delay = *asked.own
	case asked.least != nil:
		delay = max(delay, *asked.least)
	}
	due := schedule.MillisOf(request.Time.Add(delay + time.Millisecond - time.Nanosecond)) // rounded up
	if asked.postponed {
		// The retry keeps its attempt, so it needs a due time that no firing of the timer has had, whatever the clocks
		// show.
		due = max(due, min(schedule.MillisOf(e.Due)+1, schedule.MillisOf(request.Time.Add(policy.Longest))))
	}
	again := setAgain(e, event.RetryID(e), due, attempt)
	again.Late = e.Late
	return decision{retry: again, postponed: asked.postponed, refuse: refuse}
}

// parse reads the event of a request and checks that it is a firing of a timer of the request's subject.
func parse(prefix string, request event.Stored) (event.Event, error) {
	e, err := event.ParseFired(request.Data)
	if err != nil {
		return event.Event{}, err
	}
	if subject := e.Key.Subject(prefix, keys.Retry); subject != request.Subject {
		return event.Event{}, fmt.Errorf("event: its timer is %q, and retries of that timer belong on %s",
			event.ClipText(e.Key.String()), subject)
	}
	return e, nil
}

// asked has the times that a request asks for.
type asked struct {
	own       *time.Duration // the delay; nil for the policy's
	least     *time.Duration // the lower limit of the policy's delay
	postponed bool           // the same attempt again; own is given
}

// readAsked reads the headers of a request.
func readAsked(request event.Stored) (a asked, err error) {
	if a.own, err = readDelay(request, event.DelayHeader); err != nil {
		return a, err
	}
	if a.least, err = readDelay(request, event.LeastDelayHeader); err != nil {
		return a, err
	}
	if a.own != nil && a.least != nil {
		return a, fmt.Errorf("%s and %s are given together: want one of them", event.DelayHeader,
			event.LeastDelayHeader)
	}
	a.postponed, err = isPostponed(request, a.own)
	return a, err
}

// readDelay returns the delay in a header, nil if the header is missing.
func readDelay(request event.Stored, header string) (*time.Duration, error) {
	values := request.Values(header)
	if len(values) == 0 {
		return nil, nil
	}
	text := strings.TrimSpace(values[0])
	d, err := time.ParseDuration(text)
	switch {
	case len(values) > 1:
		return nil, fmt.Errorf("%s is given %d times", header, len(values))
	case err != nil:
		return nil, fmt.Errorf("%s %q: want a Go duration such as 90s or 1h30m", header, event.ClipText(text))
	case d < 0 || d > policy.Longest:
		return nil, fmt.Errorf("%s %q: want a duration from 0 to %gh", header, text, policy.Longest.Hours())
	}
	return &d, nil
}

// isPostponed reports whether a request asks for the same attempt again. own is its delay, or nil.
func isPostponed(request event.Stored, own *time.Duration) (bool, error) {
	values := request.Values(event.PostponeHeader)
	switch {
	case len(values) == 0:
		return false, nil
	case len(values) > 1:
		return false, fmt.Errorf("%s is given %d times", event.PostponeHeader, len(values))
	case strings.TrimSpace(values[0]) != event.Postponed:
		return false, fmt.Errorf("%s %q: want %s", event.PostponeHeader, event.ClipText(values[0]), event.Postponed)
	case own == nil:
		return false, fmt.Errorf("%s is given without %s", event.PostponeHeader, event.DelayHeader)
	}
	return true, nil
}

// Replay returns the retry that sets a dead letter's timer again, due at the given time as attempt 1. However often a
// letter is replayed, its timer is set once while retries are remembered: for a day at least. It fires however late,
// and so do its retries: that is the purpose of a replay.
func Replay(e event.Event, due schedule.Millis) schedule.Retry {
	r := setAgain(e, event.ReplayID(e), due, 1)
	r.Late = policy.Limit{Given: true}
	r.Replayed = due
	return r
}

// Again returns the retry of an event whose request was carried out, where the schedule has lost it. A postponed event
// keeps its attempt.
func Again(e event.Event, due schedule.Millis, postponed bool) schedule.Retry {
	attempt := e.Attempt + 1
	if postponed {
		attempt, due = e.Attempt, max(due, schedule.MillisOf(e.Due)+1) // so that its id differs from the event's
	}
	r := setAgain(e, event.RetryID(e), due, attempt)
	r.Late = e.Late
	return r
}

// setAgain returns the retry that sets an event's timer again, once for each id.
func setAgain(e event.Event, id string, due schedule.Millis, attempt int) schedule.Retry {
	first, firstAttempt := e.First()
	r := schedule.Retry{
		EventID: id, Key: e.Key, Due: due, Attempt: attempt, Payload: e.Data, Status: schedule.PayloadMissing,
		Origin: schedule.Origin{Due: schedule.MillisOf(first), Attempt: firstAttempt},
		Repeat: e.Repeat, Occurrence: e.Occurrence, Guards: e.Guards,
	}
	if parent, state := event.Trace("", e.Data); parent != e.TraceParent || state != e.TraceState {
		r.TraceParent = e.TraceParent
		if _, state := event.Trace(e.TraceParent, e.Data); state != e.TraceState {
			r.TraceState = e.TraceState
		}
	}
	if !e.Replayed.IsZero() {
		r.Replayed = schedule.MillisOf(e.Replayed)
	}
	switch {
	case e.Data != nil:
		r.Status = schedule.PayloadPresent
	case e.Status == event.StatusTooLarge:
		r.Status = schedule.PayloadTooLarge
	}
	return r
}
