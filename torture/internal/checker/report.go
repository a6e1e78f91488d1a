package checker

import (
	"github.com/timerd-io/timerd/torture/internal/history"
)

// Class is a kind of violation.
type Class string

// The kinds of violation.
const (
	Lost         Class = "lost"          // it had to fire and did not
	Early        Class = "early"         // published or stored before it was due
	Duplicate    Class = "duplicate"     // an id twice in a stream, or one firing under two ids
	WrongPayload Class = "wrong payload" // a wrong payload, or none
	WrongAttempt Class = "wrong attempt"
	Resurrected  Class = "resurrected" // fired although cancelled, deleted or replaced
	Unexpected   Class = "unexpected"  // nobody asked for it
	WrongReply   Class = "wrong reply" // an impossible reply
	Malformed    Class = "malformed"   // not an event, or not in its documented form
	Innocent     Class = "innocent"    // late because of others' faults
	Held         Class = "held"        // claimed on hold, or released in the wrong way
	Miscounted   Class = "miscounted"  // a wrong number of a repeating timer's occurrence
	TooLate      Class = "too late"    // a limit on lateness was ignored, or applied without need
	Guarded      Class = "guarded"     // fired against its guard
	Account      Class = "account"     // timers entered and left, and another number is there
)

// The kinds of violation by webhooks.
const (
	Undelivered Class = "undelivered"  // an event without a delivery and without a dead letter
	BadWebhook  Class = "bad webhook"  // a call with a wrong signature, id or content, or to the wrong host
	Unlogged    Class = "unlogged"     // a call or an event without a record
	WrongRecord Class = "wrong record" // a false record
	Repeated    Class = "repeated"     // called after a success, without a fault
	Charged     Class = "charged"      // an attempt used up without a call
	WrongEnd    Class = "wrong end"    // a dead letter without a reason
	HeldUp      Class = "held up"      // called late because of another host
)

// Classes returns all classes, in the order of reports.
func Classes() []Class {
	return []Class{
		Lost, Early, Duplicate, WrongPayload, WrongAttempt, Resurrected, Unexpected, WrongReply, Malformed, Innocent,
		Held, Miscounted, TooLate, Guarded, Account,
		Undelivered, BadWebhook, Unlogged, WrongRecord, Repeated, Charged, WrongEnd, HeldUp,
	}
}

// Violation is one broken promise.
type Violation struct {
	Class Class
	Key   string
	Text  string
	Tale  []string // the known history of the key, line by line
}

// Sample is the lateness of a firing.
type Sample struct {
	Late  int64  // stored − due, in ms
	Phase string // kind of the fault at its due time, or Calm
}

// Calm is the phase without a fault.
const Calm = "calm"

// Report is the verdict on a run.
type Report struct {
	Run        history.Run
	Drained    bool
	Violations []Violation
	// Strict counts required and forbidden firings, Lenient optional ones. Judged counts the required ones by kind of
	// operation.
	Strict, Forbidden, Lenient int
	Judged                     map[history.Kind]int
	Messages, Unjudged         int // in the streams; not judged because timerd may have missed a command
	Batched                    int // messages published in batches
	Ops                        map[history.Kind]map[history.Outcome]int
	Faults                     map[string]int
	Unready                    []history.Fault // without ready timerds in time afterwards
	Lateness                   []Sample
	Innocents                  Innocents
	// Repeating has the lateness of the later occurrences of repeating timers. Its Beside has the occurrences beside
	// faults of other slots, its Calm all the others.
	Repeating Innocents
	Holds     map[history.HoldKind]map[history.Outcome]int
	Ends      Ends
	Webhooks  Webhooks
}

// Count returns the number of violations of a class.
func (r *Report) Count(c Class) int {
	n := 0
	for _, v := range r.Violations {
		if v.Class == c {
			n++
		}
	}
	return n
}
