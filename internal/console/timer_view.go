package console

import (
	"cmp"
	"time"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
)

// TimerPage is everything about one key.
type TimerPage struct {
	At        time.Time       `json:"at"`
	Key       string          `json:"key"`
	Ref       string          `json:"ref"`
	Timers    []InspectedView `json:"timers"` // that wait or are firing: pending first, then held, owed, firing
	More      bool            `json:"more"`   // there are more than these
	Unsure    bool            `json:"unsure"` // so many are firing that not all of them were looked at
	Trigger   TriggerView     `json:"trigger"`
	FiredAt   *time.Time      `json:"firedat"`             // when one of its timers was claimed last, if within about a minute
	Contested *time.Time      `json:"contested,omitempty"` // when another timer was due that may have run out or been changed
	Repeats   *RepeatingView  `json:"repeats"`             // null if it does not
	Policy    PolicyView      `json:"policy"`
	Late      string          `json:"latelimit"` // how late it may fire, in words
	Events    EventsView      `json:"events"`
	Life      []LifeView      `json:"life"` // the same in the order in which it happened, and what is to come

	Name keyText `json:"-"`
}

// InspectedView is one timer of the key.
type InspectedView struct {
	TimerView
	Until   *time.Time `json:"until,omitempty"`   // firing: when its claim ends; otherwise: not to be claimed before
	Hold    string     `json:"hold,omitempty"`    // the namespace whose hold holds it
	Perhaps bool       `json:"perhaps,omitempty"` // its event may be in NATS already
	Unheard bool       `json:"unheard,omitempty"` // no timerd has heard of the key yet, or its namespace is not one of theirs
	Unread  bool       `json:"unread,omitempty"`  // its record was not read: it is large, and there are others
	Origin  string     `json:"origin,omitempty"`  // the id of its first event, if it has fired before
	Trace   string     `json:"traceparent,omitempty"`
}

// TriggerView is the state of the Redis key.
type TriggerView struct {
	There   bool       `json:"there"`
	Denied  bool       `json:"denied,omitempty"`  // timerd may not ask
	Expires *time.Time `json:"expires,omitempty"` // left out: never
}

// PolicyView is how the timer is tried again.
type PolicyView struct {
	Text        string   `json:"text"`
	MaxAttempts int      `json:"maxattempts"`
	Delays      []string `json:"delays"` // after each attempt that fails
}

// LifeView is a line of a timer's life.
type LifeView struct {
	Kind string     `json:"kind"` // done, bad, now or ahead
	At   *time.Time `json:"at,omitempty"`
	In   string     `json:"in,omitempty"` // of what is ahead: how long after the line marked now
	Text string     `json:"text"`
	Why  string     `json:"why,omitempty"`  // in somebody else's words
	Note string     `json:"note,omitempty"` // beside it
	Link string     `json:"-"`

	Event *EventView `json:"-"` // what it tells of, if that is an event
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

// First returns the timer that the page is about above all, or nil if none waits.
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

// OwnLate returns the limit that counts for the first timer.
func (v *TimerPage) OwnLate() string {
	if t := v.First(); t != nil && t.LateMS > 0 {
		return lateText(time.Duration(t.LateMS)*time.Millisecond, t.LateDrop) + " (its own)"
	}
	return v.Late
}

// Wider returns the search for all ids that contain this one.
func (v *TimerPage) Wider() string {
	key, err := decodeRef(v.Ref)
	if err != nil {
		return ""
	}
	return keys.Namespace{App: key.App, Module: key.Module, Type: key.Type}.String() + " " + keys.EncodeText(key.ID)
}

// Origin returns the id of the first event of what the page is about above all: of the first timer, or where none waits of the
// newest event. It is empty where that is not known.
func (v *TimerPage) Origin() string {
	if t := v.First(); t != nil {
		return t.Origin
	}
	e := v.newest()
	return cmp.Or(e.Origin, e.ID)
}

// Trace returns the trace of the same; empty where that is not known.
func (v *TimerPage) Trace() string {
	if t := v.First(); t != nil {
		return t.Trace
	}
	return v.newest().Trace
}

// newest returns the newest event, without what is none.
func (v *TimerPage) newest() EventView {
	for _, e := range v.Events.Events {
		if e.Fault == "" {
			return e
		}
	}
	return EventView{}
}

// CanMove tells whether the first timer can be set to another time.
func (v *TimerPage) CanMove() bool {
	t := v.First()
	return t != nil && t.State == string(query.StatePending)
}

// CanCancel tells whether there is anything to cancel.
func (v *TimerPage) CanCancel() bool {
	for _, t := range v.Timers {
		if t.State != string(query.StateFiring) {
			return true
		}
	}
	return false
}
