package schedule

import (
	"time"

	"github.com/timerd-io/timerd/keys"
)

// OutcomeKind is the kind of a decision on a claimed firing.
type OutcomeKind int

// The kinds. Settle takes the first two, Release the others.
const (
	OutcomeFired     OutcomeKind = iota // NATS has the event
	OutcomeUnfired                      // no event was published: the firing is a dead letter, or was dropped
	OutcomeGivenBack                    // any timerd may claim the firing again
	// any timerd may claim the firing again, but NATS refuses its subject: it is listed as parked until it is settled
	OutcomeRefused
)

// Outcome is the decision on a claimed firing. [Firing.Outcome] makes one.
type Outcome struct {
	Ref  string // names the firing in the index
	Kind OutcomeKind
	// Pause is the time before the next claim of a firing that is given back.
	Pause time.Duration
	// MayBeStored reports whether this claim or an earlier one may have published the event of a firing that is given
	// back.
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

func (o *Outcome) repeats() bool { return o.firing.Occurrence.Repeats() }
