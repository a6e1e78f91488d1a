package schedule

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
)

// Trigger is the cause of a firing.
type Trigger string

// The triggers, as events have them.
const (
	TriggerDeadline Trigger = "deadline" // the reconciler woke up for it
	TriggerExpired  Trigger = "expired"  // Redis's event came first
	TriggerSweep    Trigger = "sweep"    // recovered by a sweep
	TriggerReclaim  Trigger = "reclaim"  // claimed before by someone whose lease ran out
)

// Firing is a claimed timer: one event to publish. The timerd that claimed it has it until its lease ends. Then any
// timerd may claim it again.
type Firing struct {
	Ref     string // names the firing in the index
	Key     keys.Key
	Due     Millis
	Attempt int // timerd's own count; 0: the payload's, or 1
	Payload []byte
	Status  Status
	Trigger Trigger
	Late    policy.Limit  // its own
	Guards  policy.Guards // its own
	Origin  Origin        // the timer's first firing; zero where it is this one
	// Replayed is the time of its replay; 0 if it was not replayed.
	Replayed Millis
	// TraceParent and TraceState are those set with the timer; the payload may have others.
	TraceParent, TraceState string
	// Occurrence is nil for a timer that does not repeat.
	Occurrence *Occurrence

	Partition keys.Partition
	ClaimedAt time.Time     // on the Redis server's clock
	Received  time.Time     // the local instant, with monotonic reading, at which the claim was sent
	Took      time.Duration // longest time from there to the reading of ClaimedAt
	Lease     time.Duration // from ClaimedAt on

	// MayBeStored says that an earlier claim may have published the event.
	MayBeStored bool
	// Waited is the time for which the timer, once due, waited to be compared with the streams: Redis was restored.
	Waited time.Duration
	freed  bool // a resume has released it, or it had a pause: given back, it stays so

	// Refusal is the answer of its guards. If it is not zero, no claim has published the event.
	Refusal policy.Refusal

	// Held says that it was held, and becomes a dead letter instead of an event.
	Held bool

	// Fault says why a repetition cannot begin, and becomes a dead letter instead of an event; it is empty for a
	// firing.
	Fault string
}

// Now estimates the time on the Redis server's clock. It is never later than that clock and never before ClaimedAt, and
// a step of the local clock does not affect it.
func (f *Firing) Now() time.Time {
	return f.ClaimedAt.Add(max(time.Since(f.Received)-f.Took, 0))
}

// Remaining returns the rest of the lease by the local monotonic clock; it errs on the short side, by the duration of
// the claim.
func (f *Firing) Remaining() time.Duration { return f.Lease - time.Since(f.Received) }

// leaseEnd returns the score of the firing's claim in the index.
func (f *Firing) leaseEnd() Millis { return MillisOf(f.ClaimedAt).Add(f.Lease) }

// newFiring reads a ref and a record, as the scripts write them.
func newFiring(ref, text string) (Firing, error) {
	due, attempt, key, err := ParseRef(ref)
	r, ok := ParseRecord(text)
	if err == nil && !ok {
		err = errors.New("malformed record")
	}
	if err != nil {
		return Firing{}, fmt.Errorf("corrupt entry %q: %w", ref, err)
	}
	f := Firing{
		Ref: ref, Key: key, Due: due, Status: r.Status, Late: r.Late, Origin: r.Origin, Replayed: r.replayed,
		TraceParent: r.Trace[0], TraceState: r.Trace[1], Held: r.held, Occurrence: r.Occurrence,
		Guards: r.Guards, Refusal: r.Refusal(),
	}
	if attempt != "" {
		if f.Attempt, err = strconv.Atoi(attempt); err != nil {
			return f, fmt.Errorf("corrupt entry %q: %w", ref, err)
		}
	}
	if f.Occurrence.Repeats() && attempt == planAttempt {
		f.Occurrence.toPlan = true
	}
	if r.expired {
		f.Trigger = TriggerExpired
	}
	if f.Status == PayloadPresent {
		f.Payload = []byte(r.Payload)
	}
	return f, nil
}
