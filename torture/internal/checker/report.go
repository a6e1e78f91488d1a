package checker

import (
	"github.com/timerd-io/timerd/torture/internal/history"
)

// Class is a kind of violation.
type Class string

// What can be wrong.
const (
	Lost         Class = "lost"          // it had to fire and did not
	Early        Class = "early"         // published or stored before it was due
	Duplicate    Class = "duplicate"     // an id twice in a stream, or one firing under two ids
	WrongPayload Class = "wrong payload" // another one, or none
	WrongAttempt Class = "wrong attempt"
	Resurrected  Class = "resurrected" // fired though cancelled, deleted or replaced
	Unexpected   Class = "unexpected"  // nobody asked for it
	WrongReply   Class = "wrong reply" // a reply that cannot be
	Malformed    Class = "malformed"   // not an event, or not as the contract has it
	Innocent     Class = "innocent"    // late because of what concerns others
	Held         Class = "held"        // claimed while it was held, or not released as it was to be
	Miscounted   Class = "miscounted"  // an occurrence of a timer that repeats has another number than it is
	TooLate      Class = "too late"    // a limit on lateness was not kept, or kept without need
)

// What can be wrong with webhooks.
const (
	Undelivered Class = "undelivered"  // nobody got an event, and there is no dead letter
	BadWebhook  Class = "bad webhook"  // a call with a wrong signature, id or content, or to the wrong host
	Unlogged    Class = "unlogged"     // a call or an event without a record
	WrongRecord Class = "wrong record" // a record of what was not so
	Repeated    Class = "repeated"     // called after a success, and nothing had gone wrong
	Charged     Class = "charged"      // an attempt was used up that was not made
	WrongEnd    Class = "wrong end"    // a dead letter without a reason
	HeldUp      Class = "held up"      // called late because of another host
)

// Classes returns all classes, in the order in which they are told.
func Classes() []Class {
	return []Class{
		Lost, Early, Duplicate, WrongPayload, WrongAttempt, Resurrected, Unexpected, WrongReply, Malformed, Innocent, Held, Miscounted, TooLate,
		Undelivered, BadWebhook, Unlogged, WrongRecord, Repeated, Charged, WrongEnd, HeldUp,
	}
}

// Violation is one broken promise.
type Violation struct {
	Class Class
	Key   string
	Text  string
	Tale  []string // what is known of the key, line by line
}

// Sample is how late a firing was.
type Sample struct {
	Late  int64  // stored − due, in ms
	Phase string // kind of the fault that it was due in, or Calm
}

// Calm is the phase without any fault.
const Calm = "calm"

// Report is the verdict on a run.
type Report struct {
	Run        history.Run
	Drained    bool
	Violations []Violation
	// Strict counts firings that had to come and firings that were not to come; Lenient
	// those that were free to. Judged is Strict's first part by the kind of operation.
	Strict, Forbidden, Lenient int
	Judged                     map[history.Kind]int
	Messages, Unjudged         int // in the streams; of keys of which something may have gone unheard
	Batched                    int // of the messages, those that were published together with others
	Ops                        map[history.Kind]map[history.Outcome]int
	Faults                     map[string]int
	Unready                    []history.Fault // after which not all timerds became ready
	Lateness                   []Sample
	Innocents                  Innocents
	// Repeating is the same of the later occurrences of timers that repeat, beside faults that concern other slots. Calm is all the rest.
	Repeating Innocents
	Holds     map[history.HoldKind]map[history.Outcome]int
	Ends      Ends
	Webhooks  Webhooks
}

// Count returns how many violations are of a class.
func (r *Report) Count(c Class) int {
	n := 0
	for _, v := range r.Violations {
		if v.Class == c {
			n++
		}
	}
	return n
}
