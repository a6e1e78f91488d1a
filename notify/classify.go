package notify

import (
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/lanes"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// knownSlack shortens the duplicate window, to be safe.
	knownSlack = 5 * time.Second

	// A firing that is given back because of its subject pauses for a part of its lateness: 1/pausePart, at most
	// longestParked. The least pause is failingPause on a failing subject, and crowdedPause on any other.
	pausePart     = 4
	failingPause  = time.Second
	crowdedPause  = 500 * time.Millisecond
	longestParked = time.Minute
)

// fate is the outcome of classifying a claimed firing.
type fate int

const (
	publish fate = iota
	// publish it unless the stream has the event: JetStream may have forgotten the id, or may know it by another id
	seek
	bury       // make it a dead letter
	drop       // drop it
	guarded    // end it: its guard has said no
	asideGuard // give it back for a while: its guard cannot be read
)

// terms are the conditions of a classification, besides the firing.
type terms struct {
	limit   policy.Limit  // on the firing's lateness
	otherID bool          // it may have been published under another id
	knows   time.Duration // time for which JetStream remembers ids; 0 before it is known
}

// classify returns the fate of a firing, and the reason for a dead letter or a drop. It reads no clock. A firing that
// may have been published is not dropped, because an operator may look for its outcome.
func classify(f *schedule.Firing, t terms) (fate, string) {
	by := time.Duration(schedule.MillisOf(f.ClaimedAt)-f.Due)*time.Millisecond - f.Waited
	switch {
	case f.Fault != "":
		return bury, event.ReasonRepeat + f.Fault
	case f.Held:
		return bury, event.ReasonHeld
	case t.limit.Exceeded(by):
		reason := event.LateReason(by, t.limit.Most, f.MayBeStored)
		if t.limit.Drop && !f.MayBeStored {
			return drop, reason
		}
		return bury, reason
	case f.Refusal.Unread:
		return asideGuard, f.Refusal.String()
	case f.Refusal != policy.Refusal{}:
		return guarded, f.Refusal.String()
	}
	// It was not published before it was due.
	forgotten := f.MayBeStored && f.ClaimedAt.Add(f.Lease).Sub(f.Due.Time()) > t.knows-knownSlack
	if forgotten || t.otherID {
		return seek, ""
	}
	return publish, ""
}

// limitOf returns the limit of a firing's lateness: the timer's own, or its namespace's.
func limitOf(f *schedule.Firing, rules policy.Rules[policy.Limit]) policy.Limit {
	if f.Late.Given {
		return f.Late
	}
	return rules.For(f.Key)
}

// attempts returns the attempt of a firing, and the most attempts. stated means that an attempt in the payload counts;
// a number over the most attempts is no retry count. other is the attempt under which the firing may have been
// published before, with other settings; 0 if there is none.
func attempts(f *schedule.Firing, most int, stated bool) (attempt, other int) {
	if f.Attempt != 0 {
		return f.Attempt, 0
	}
	if !stated && !f.MayBeStored {
		return 1, 0
	}
	own := event.Attempt(f.Payload)
	attempt, other = 1, own
	if stated && own <= most {
		attempt, other = own, 1
	}
	if attempt == other || !f.MayBeStored {
		other = 0
	}
	return attempt, other
}

// parked returns the pause of a firing that is given back because of its subject.
func parked(f *schedule.Firing, why lanes.Answer) time.Duration {
	shortest := crowdedPause
	if why == lanes.Failing {
		shortest = failingPause
	}
	return min(max(f.Now().Sub(f.Due.Time())/pausePart, shortest), longestParked)
}
