package schedule

import (
	"time"

	"github.com/timerd-io/timerd/keys"
)

// OutcomeKind is the kind of a decision on a claimed firing.
type OutcomeKind int

// The kinds. Settle takes the first four, Release the others.
const (
	OutcomeFired   OutcomeKind = iota // NATS has the event
	OutcomeDead                       // it is a dead letter; MayBeStored: its event may be stored
	OutcomeGuarded                    // its guard has said no
	OutcomeUnfired                    // it was dropped without an event
	// any timerd may claim the firing again
	OutcomeGivenBack
	// any timerd may claim the firing again, but NATS refuses its subject: it is listed as parked until it is settled
	OutcomeRefused
	OutcomeUnread // likewise, but timerd may not read its guard
)

// Outcome is the decision on a claimed firing. [Firing.Outcome] makes one.
type Outcome struct {
	Ref  string // names the firing in the index
	Kind OutcomeKind
	// Pause is the time before the next claim of a firing that is given back.
	Pause time.Duration
	// MayBeStored reports whether this claim or an earlier one may have published the event of a firing that is given
	// back or a dead letter.
	MayBeStored bool

	firing Firing // without its payload
	bytes  int    // of the payload
}

// Outcome returns a decision on f, for Settle or Release. It does not keep the payload.
func (f *Firing) Outcome(kind OutcomeKind) Outcome {
	o := Outcome{Ref: f.Ref, Kind: kind, MayBeStored: f.MayBeStored, firing: *f, bytes: len(f.Payload)}
	o.firing.Payload = nil
	return o
}

// Outcomes returns the same decision on several firings.
func Outcomes(kind OutcomeKind, firings ...Firing) []Outcome {
	all := make([]Outcome, len(firings))
	for i := range firings {
		all[i] = firings[i].Outcome(kind)
	}
	return all
}

// Partition returns the partition of the firing.
func (o *Outcome) Partition() keys.Partition { return o.firing.Partition }

// Bytes returns the size of the firing's payload.
func (o *Outcome) Bytes() int { return o.bytes }

// isUnfired reports whether no event of a settled firing can be stored.
func (o *Outcome) isUnfired() bool {
	return o.Kind != OutcomeFired && (o.Kind != OutcomeDead || !o.MayBeStored)
}

// accountKind returns the account's kind of a settled firing.
func (o *Outcome) accountKind() AccountKind {
	switch {
	case o.Kind == OutcomeFired:
		return AccountFired
	case o.Kind == OutcomeDead && o.MayBeStored:
		return AccountUnsure
	case o.Kind == OutcomeDead:
		return AccountDead
	case o.Kind == OutcomeGuarded:
		return AccountGuarded
	case isToPlan(o.firing): // it has no occurrence
		return AccountSkipped
	}
	return AccountDropped
}

func (o *Outcome) repeats() bool { return o.firing.Occurrence.Repeats() }
