package checker

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// Reasons of the dead letters that come in place of an event.
const (
	reasonLate = "late: "
	reasonHeld = "held"
	// published ends the reason of one that may stand beside its event.
	published = "; may have been published"
)

// reclaim is the trigger of what was claimed before by somebody who did not settle it.
const reclaim = "reclaim"

// stamps is how far, in ms, the time in an event may be off.
const stamps = 100

// outlives is how long, in ms, a fault may have effects on timers that are set after it: requests for a retry come again that
// were lost on their way.
const outlives = 15_000

// inPlace tells whether a dead letter is one that comes in place of an event.
func inPlace(m history.Message) bool {
	return strings.HasPrefix(m.Reason, reasonLate) || m.Reason == reasonHeld || m.Reason == reasonHeld+published
}

// isBeside tells whether a message may stand beside the event that it comes in place of.
func isBeside(m history.Message) bool {
	return m.Stream == history.DeadStream && inPlace(m) && strings.HasSuffix(m.Reason, published)
}

// isForgotten tells of two messages of a firing whether one comes in place of the event that the other is, because a failover
// lost that it was claimed.
func (j *judge) isForgotten(a, b history.Message) bool {
	return (a.Stream == history.DeadStream && inPlace(a)) != (b.Stream == history.DeadStream && inPlace(b)) &&
		slices.ContainsFunc(j.h.Faults, func(f history.Fault) bool {
			return f.Effect == history.Failover && j.during(f, min(a.Stored, b.Stored), max(a.Stored, b.Stored))
		})
}

// Ends counts the firings that had to come in another way than that of most.
type Ends struct {
	Held    int // were due while they were held for certain, and fired
	Spaced  int // of these: released at a rate
	Shifted int // by a length that is the same for all
	Buried  int // are dead letters because their hold ended so
	TooLate int // are dead letters because they were too late
	Dropped int // nothing came of them, as they had asked for
}

// ends judges how a firing ended: when it was claimed, and whether it had to be an event or a dead letter.
func (j *judge) ends(key string, t *timeline, f *firing) {
	if f.dead || f.force == mustNot {
		return
	}
	for _, m := range f.seen {
		if m.Stream == history.DeadStream {
			j.letter(key, t, f, m)
		} else {
			j.event(key, t, f, m)
		}
	}
	switch {
	case f.force != must:
	case len(f.seen) > 0 && f.held != nil:
		j.release(key, t, f, f.seen[0])
	case len(f.seen) == 0 && f.drop:
		j.report.Ends.Dropped++
	}
}

// event judges when an event was claimed. It is published within the lease.
func (j *judge) event(key string, t *timeline, f *firing, m history.Message) {
	lease := j.h.Run.Lease + stamps
	if f.late > 0 && m.Time > m.Due+f.late+lease {
		j.fault(TooLate, key, "%s was published at %d, %d ms after its due time, at most %d is allowed for its claim", m.ID, m.Time, m.Time-m.Due, f.late)
	}
	if f.force == must && f.mustDie && !j.heldAgain(t, f, m) {
		j.fault(Held, key, "%s fired, but was to be a dead letter", m.ID)
	}
	for _, w := range t.holds.sure {
		switch {
		case w.from < m.Due && m.Due <= w.to:
			j.report.Ends.Held++
			if m.Time <= w.to {
				j.fault(Held, key, "%s was claimed while it was held, from %d to %d", m.ID, w.from, w.to)
			} else if f.late > 0 && w.to+1-m.Due > f.late && m.Time <= m.Due+f.late+lease {
				j.fault(TooLate, key, "%s was held until %d, %d ms after its due time, at most %d is allowed", m.ID, w.to+1, w.to+1-m.Due, f.late)
			}
		case m.Due <= w.from && w.from+lease < m.Time && m.Time <= w.to && m.Trigger != reclaim && !j.disturbed(key, m.Due, m.Time):
			j.fault(Held, key, "%s was held from %d to %d: claimed before that, it would have been published by %d", m.ID, w.from, w.to, w.from+lease)
		}
	}
}

// heldAgain tells whether a firing that was to be a dead letter was held once more before that was stored, because a fault kept
// it, such as a full stream: then it ends as that hold does.
func (j *judge) heldAgain(t *timeline, f *firing, m history.Message) bool {
	kept := func(from, to int64) bool {
		return slices.ContainsFunc(j.h.Faults, func(f history.Fault) bool {
			return !f.Hold && len(f.Timerds) > 0 && j.during(f, from, to)
		})
	}
	return slices.ContainsFunc(f.buried, func(dead *hold) bool {
		return slices.ContainsFunc(t.holds.all, func(h *hold) bool {
			return dead.ended.from < h.begun.from && h.begun.from <= m.Time && kept(dead.ended.from, h.begun.to)
		})
	})
}

// letter judges a dead letter that came in place of an event.
func (j *judge) letter(key string, t *timeline, f *firing, m history.Message) {
	if !strings.HasPrefix(m.Reason, reasonLate) {
		first := never
		for _, h := range f.buried {
			first = min(first, h.ended.from)
		}
		if m.Stored < first {
			j.fault(Held, key, "%s is a dead letter, %q, stored at %d, and no hold had ended so", m.ID, m.Reason, m.Stored)
		}
		return
	}
	j.report.Ends.TooLate++
	by, most, ok := readLate(m.Reason)
	claim := m.Due + by
	switch {
	case !ok:
		j.fault(Malformed, key, "%s: the reason %q", m.ID, m.Reason)
		return
	case f.late == 0 || most != f.late || by <= most:
		j.fault(TooLate, key, "%s: %q, but at most %d ms is allowed, 0 is any", m.ID, m.Reason, f.late)
	case m.Stored < claim:
		j.fault(TooLate, key, "%s: %q, stored at %d", m.ID, m.Reason, m.Stored)
	case f.drop && !isBeside(m):
		j.fault(TooLate, key, "%s: %q, but it was to be forgotten", m.ID, m.Reason)
	case !j.excused(key, f):
		j.fault(TooLate, key, "%s: %q, and nothing kept it from firing", m.ID, m.Reason)
	}
	for _, w := range t.holds.sure {
		if w.from < claim && claim <= w.to && (w.from < m.Due || !isBeside(m)) {
			j.fault(Held, key, "%s was claimed at %d while it was held, from %d to %d", m.ID, claim, w.from, w.to)
		}
	}
}

// readLate reads how late a timer was and how late it may have been, in ms, from a reason such as
//
//	late: 7m12.3s after its due time, at most 5m0s
func readLate(reason string) (by, most int64, ok bool) {
	text, _ := strings.CutPrefix(strings.TrimSuffix(reason, published), reasonLate)
	was, limit, ok := strings.Cut(text, " after its due time, at most ")
	late, err1 := time.ParseDuration(was)
	bound, err2 := time.ParseDuration(limit)
	return late.Milliseconds(), bound.Milliseconds(), ok && err1 == nil && err2 == nil
}

// release notes a firing that was held for certain until a hold ended.
func (j *judge) release(key string, t *timeline, f *firing, m history.Message) {
	switch ends := &j.report.Ends; {
	case f.mustDie && m.Stream == history.DeadStream:
		ends.Buried++
	case f.held.kind == history.ResumeShift && f.was != 0:
		ends.Shifted++
		j.released[f.held] = append(j.released[f.held], released{key, m, m.Due - f.was, len(t.firings) > 1})
	case f.held.kind == history.ResumeRate && m.Stream == history.FiredStream && !slices.ContainsFunc(t.holds.all, func(h *hold) bool {
		return h.begun.from > f.held.ended.from && h.begun.from <= m.Time
	}):
		ends.Spaced++
		j.released[f.held] = append(j.released[f.held], released{key: key, m: m})
	}
}

// released is a firing that a hold held until its end.
type released struct {
	key     string
	m       history.Message
	by      int64 // how many ms it was shifted
	several bool  // its key had other timers: where one has its due time, it is moved by 1 ms
}

// resumes judges what all firings that a hold held have in common.
func (j *judge) resumes() {
	for _, h := range j.holds {
		all := j.released[h]
		switch h.kind {
		case history.ResumeShift:
			j.shifted(h, all)
		case history.ResumeRate:
			j.spaced(h, all)
		}
	}
}

// shifted judges whether a shift was the same for all.
func (j *judge) shifted(h *hold, all []released) {
	count, usual := map[int64]int{}, int64(0)
	for _, r := range all {
		if count[r.by]++; count[r.by] > count[usual] {
			usual = r.by
		}
	}
	for _, r := range all {
		if r.by != usual && (!r.several || r.by != usual+1) {
			j.fault(Held, r.key, "%s was shifted by %d ms, others of %s by %d", r.m.ID, r.by, h.namespace, usual)
		}
	}
}

// spaced judges whether a resume at a rate was no faster than that: by 10 % at most. It may be slower at any time.
func (j *judge) spaced(h *hold, all []released) {
	slices.SortFunc(all, func(a, b released) int { return cmp.Compare(a.m.Time, b.m.Time) })
	for i, r := range all {
		// One is let through in addition.
		if earliest := h.ended.from + int64(i-1)*1000*10/(h.rate*11); i > 0 && r.m.Time < earliest {
			j.fault(Held, r.key, "%s is number %d that fired since %d, %d ms later, which is more than %d a second",
				r.m.ID, i+1, h.ended.from, r.m.Time-h.ended.from, h.rate)
			return
		}
	}
}

// disturbed tells whether a fault that concerns a key, other than a hold, was there between two times.
func (j *judge) disturbed(key string, from, to int64) bool {
	return slices.ContainsFunc(j.h.Faults, func(f history.Fault) bool {
		return !f.Hold && concerns(f, key) && j.during(f, from, to)
	})
}

// calm tells whether no fault at all concerned a key between two times, nor a hold.
func (j *judge) calm(key string, from, to int64) bool {
	return !slices.ContainsFunc(j.h.Faults, func(f history.Fault) bool {
		return concerns(f, key) && j.during(f, from-outlives, to)
	})
}

// without returns how much of a time a timer had no need to wait for.
func (j *judge) without(from, to int64) int64 {
	return max(0, to-from-j.stalled(from, to)-storing*j.stored(from, to))
}

// excused tells whether a firing may have been claimed too late.
func (j *judge) excused(key string, f *firing) bool {
	return j.without(f.from, f.to+f.late) <= innocentMost || !j.calm(key, f.op.Invoked, f.to+f.late)
}

// settled tells whether a firing that may have been cancelled after it was due had been claimed before that: nothing kept it.
func (j *judge) settled(key string, f *firing) bool {
	return f.freed > f.to && j.without(f.to, f.freed) > innocentMost && j.calm(key, f.op.Invoked, f.freed)
}
