package console

import (
	"cmp"
	"time"

	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
)

// TimerPage is everything about one key.
type TimerPage struct {
	At        time.Time       `json:"at"`
	Key       string          `json:"key"`
	Ref       string          `json:"ref"`
	Timers    []InspectedView `json:"timers"` // waiting or firing: pending first, then held, owed, firing
	More      bool            `json:"more"`   // there are more
	Unsure    bool            `json:"unsure"` // too many are firing to search all
	Trigger   TriggerView     `json:"trigger"`
	FiredAt   *time.Time      `json:"firedat"`             // the last claim of its timers, if within about a minute
	Contested *time.Time      `json:"contested,omitempty"` // due time of another timer, run out or changed, undecided
	Repeats   *RepeatingView  `json:"repeats"`             // null if it does not
	Policy    PolicyView      `json:"policy"`
	Late      string          `json:"latelimit"`           // its limit on lateness, in words
	Guard     string          `json:"guardrule,omitempty"` // of TIMERD_GUARD, for timers without guards of their own
	Events    EventsView      `json:"events"`
	Life      []LifeView      `json:"life"` // past and future in order

	Name       keyText `json:"-"`
	newestPage bool    // the events found are the last ones
}

// InspectedView is one timer of the key.
type InspectedView struct {
	TimerView
	Until   *time.Time `json:"until,omitempty"`   // firing: the end of its claim; otherwise: no claim before then
	Hold    string     `json:"hold,omitempty"`    // the namespace whose hold holds it
	Perhaps bool       `json:"perhaps,omitempty"` // its event may be in NATS already
	Unheard bool       `json:"unheard,omitempty"` // no timerd knows the key yet, or its namespace is not served
	Unread  bool       `json:"unread,omitempty"`  // omitted: its record is large, and the key has other timers
	Origin  string     `json:"origin,omitempty"`  // the id of its first event, if it has fired before
	Trace   string     `json:"traceparent,omitempty"`
}

// TriggerView is the state of the Redis key.
type TriggerView struct {
	There   bool       `json:"there"`
	Denied  bool       `json:"denied,omitempty"`  // timerd lacks the right to read it
	Expires *time.Time `json:"expires,omitempty"` // absent: never
}

// PolicyView is the timer's retry policy.
type PolicyView struct {
	Text        string   `json:"text"`
	MaxAttempts int      `json:"maxattempts"`
	Delays      []string `json:"delays"` // after each failed attempt
}

// LifeView is a line of a timer's life.
type LifeView struct {
	Kind string     `json:"kind"` // done, bad, now or ahead
	At   *time.Time `json:"at,omitempty"`
	In   string     `json:"in,omitempty"` // of a future line: the time after the line "now"
	Text string     `json:"text"`
	Why  string     `json:"why,omitempty"`  // a user's or a server's text
	Note string     `json:"note,omitempty"` // beside it
	Link string     `json:"-"`

	Event *EventView `json:"-"` // its event, if it has one
}

func lateText(most time.Duration, drop bool) string {
	switch {
	case most == 0:
		return "none: it fires however late"
	case drop:
		return about(most) + ", then it is forgotten"
	}
	return about(most) + ", then a dead letter"
}

// First returns the page's main timer, or nil if none waits.
func (v *TimerPage) First() *InspectedView {
	if len(v.Timers) == 0 {
		return nil
	}
	return &v.Timers[0]
}

// Others returns the retries beside it, and earlier timers that are still on their way.
func (v *TimerPage) Others() []InspectedView {
	if len(v.Timers) < 2 {
		return nil
	}
	return v.Timers[1:]
}

// OwnLate returns the limit on lateness of the first timer.
func (v *TimerPage) OwnLate() string {
	if t := v.First(); t != nil && t.LateMS > 0 {
		return lateText(time.Duration(t.LateMS)*time.Millisecond, t.LateDrop) + " (its own)"
	}
	return v.Late
}

// Guards returns the guards of the first timer in words: its own, or those of TIMERD_GUARD. It is empty without one.
func (v *TimerPage) Guards() string {
	if t := v.First(); t != nil && t.IsGuarded() {
		return policy.GuardRule{Unless: t.Unless, If: t.If}.String() + " (its own)"
	}
	if v.Guard == "" {
		return ""
	}
	return v.Guard + " (TIMERD_GUARD)"
}

// Wider returns the search for all ids that contain this timer's id.
func (v *TimerPage) Wider() string {
	key, err := decodeRef(v.Ref)
	if err != nil {
		return ""
	}
	return keys.Namespace{App: key.App, Module: key.Module, Type: key.Type}.String() + " " + keys.EncodeText(key.ID)
}

// Origin returns the id of the first event of the main timer or, if none waits, of the newest event. It is empty if
// unknown.
func (v *TimerPage) Origin() string {
	if t := v.First(); t != nil {
		return t.Origin
	}
	e := v.newest()
	return cmp.Or(e.Origin, e.ID)
}

// Trace returns the trace of the same timer or event; empty if unknown.
func (v *TimerPage) Trace() string {
	if t := v.First(); t != nil {
		return t.Trace
	}
	return v.newest().Trace
}

// newest returns the newest message that is an event.
func (v *TimerPage) newest() EventView {
	for _, e := range v.Events.Events {
		if e.Fault == "" {
			return e
		}
	}
	return EventView{}
}

// CanMove reports whether the first timer can be moved to another time.
func (v *TimerPage) CanMove() bool {
	t := v.First()
	return t != nil && t.State == string(query.StatePending)
}

// CanCancel reports whether there is anything to cancel.
func (v *TimerPage) CanCancel() bool {
	for _, t := range v.Timers {
		if t.State != string(query.StateFiring) {
			return true
		}
	}
	return false
}
