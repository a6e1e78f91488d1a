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
	// published ends the reason of a dead letter whose event may exist too.
	published = "; may have been published"
)

// reclaim is the trigger of a firing that was claimed before and not settled.
const reclaim = "reclaim"

// timeTolerance is the allowed error, in ms, of the time in an event.
const timeTolerance = 100

// aftermath is the time, in ms, for which a fault may affect timers set after it: lost retry requests come again.
const aftermath = 15_000

// inPlace reports whether a dead letter comes in place of an event.
func inPlace(m history.Message) bool {
	return strings.HasPrefix(m.Reason, reasonLate) || m.Reason == reasonHeld || m.Reason == reasonHeld+published
}

// isBeside reports whether a dead letter stands for an event that may exist too.
func isBeside(m history.Message) bool {
	return m.Stream == history.DeadStream && inPlace(m) && strings.HasSuffix(m.Reason, published)
}

// isForgotten reports whether one of two messages of a firing replaces the other one. That happens if a failover has
// lost the claim.
func (j *judge) isForgotten(a, b history.Message) bool {
	return (a.Stream == history.DeadStream && inPlace(a)) != (b.Stream == history.DeadStream && inPlace(b)) &&
		slices.ContainsFunc(j.h.Faults, func(f history.Fault) bool {
			return f.Effect == history.Failover && j.during(f, min(a.Stored, b.Stored), max(a.Stored, b.Stored))
		})
}

// Ends counts the firings that ended in an unusual way.
type Ends struct {
	Held    int // certainly on hold when due, and fired
	Spaced  int // released at a rate
	Shifted int // shifted, all by the same length
	Buried  int // dead letters: their hold ended so
	TooLate int // dead letters: too late
	Dropped int // dropped without a message, as requested
	Guarded int // certainly stopped by their guard
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
	case len(f.seen) == 0 && t.guard.stops(f.guard, j.claimed(key, f)):
		j.report.Ends.Guarded++
	case len(f.seen) == 0 && f.drop:
		j.report.Ends.Dropped++
	}
}

// event judges the claim of a firing from its event. The event is published within the lease.
func (j *judge) event(key string, t *timeline, f *firing, m history.Message) {
	lease := j.h.Run.Lease + timeTolerance
	if t.guard.stops(f.guard, window{m.Due, m.Stored}) {
		j.fault(Guarded, key, "%s fired, and its guard, %s, forbade it from its due time until it was stored at %d",
			m.ID, f.guard, m.Stored)
	}
	if f.late > 0 && m.Time > m.Due+f.late+lease {
		j.fault(TooLate, key, "%s was published at %d, %d ms after its due time, at most %d is allowed for its claim",
			m.ID, m.Time, m.Time-m.Due, f.late)
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
				j.fault(TooLate, key, "%s was held until %d, %d ms after its due time, at most %d is allowed", m.ID,
					w.to+1, w.to+1-m.Due, f.late)
			}
		case m.Due <= w.from && w.from+lease < m.Time && m.Time <= w.to && m.Trigger != reclaim &&
			!j.disturbed(key, m.Due, m.Time):
			j.fault(Held, key, "%s was held from %d to %d: claimed before that, it would have been published by %d",
				m.ID, w.from, w.to, w.from+lease)
		}
	}
}

// heldAgain reports whether a fault, such as a full stream, delayed a dead letter until its firing was on hold once
// more. Then the firing ends with the second hold.
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
			j.fault(Held, key, "%s is a dead letter, %q, stored at %d, and no hold had ended so", m.ID, m.Reason,
				m.Stored)
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

// readLate reads the lateness of a timer, and its limit, in ms, from a reason such as
//
//	late: 7m12.3s after its due time, at most 5m0s
func readLate(reason string) (by, most int64, ok bool) {
	text, _ := strings.CutPrefix(strings.TrimSuffix(reason, published), reasonLate)
	was, limit, ok := strings.Cut(text, " after its due time, at most ")
	late, err1 := time.ParseDuration(was)
	bound, err2 := time.ParseDuration(limit)
	return late.Milliseconds(), bound.Milliseconds(), ok && err1 == nil && err2 == nil
}

// release notes a firing that was certainly held until a hold ended.
func (j *judge) release(key string, t *timeline, f *firing, m history.Message) {
	switch ends := &j.report.Ends; {
	case f.mustDie && m.Stream == history.DeadStream:
		ends.Buried++
	case f.held.kind == history.ResumeShift && f.was != 0:
		ends.Shifted++
		j.released[f.held] = append(j.released[f.held], released{key, m, m.Due - f.was, len(t.firings) > 1})
	case f.held.kind == history.ResumeRate && m.Stream == history.FiredStream &&
		!slices.ContainsFunc(t.holds.all, func(h *hold) bool {
			return h.begun.from > f.held.ended.from && h.begun.from <= m.Time
		}):
		ends.Spaced++
		j.released[f.held] = append(j.released[f.held], released{key: key, m: m})
	}
}

// released is a firing that a hold kept until its end.
type released struct {
	key     string
	m       history.Message
	by      int64 // the shift, in ms
	several bool  // its key had other timers: it moves by 1 ms to avoid their due times
}

// resumes judges the common rule for all firings of a hold.
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

// shifted judges whether a resume has shifted all timers by the same time.
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

// spaced judges whether a resume at a rate has kept the rate, within 10 %. It may be slower.
func (j *judge) spaced(h *hold, all []released) {
	slices.SortFunc(all, func(a, b released) int { return cmp.Compare(a.m.Time, b.m.Time) })
	for i, r := range all {
		// One timer more is allowed.
		if earliest := h.ended.from + int64(i-1)*1000*10/(h.rate*11); i > 0 && r.m.Time < earliest {
			j.fault(Held, r.key, "%s is number %d that fired since %d, %d ms later, which is more than %d a second",
				r.m.ID, i+1, h.ended.from, r.m.Time-h.ended.from, h.rate)
			return
		}
	}
}

// disturbed reports whether a fault, other than a hold, concerned a key between two times.
func (j *judge) disturbed(key string, from, to int64) bool {
	return slices.ContainsFunc(j.h.Faults, func(f history.Fault) bool {
		return !f.Hold && concerns(f, key) && j.during(f, from, to)
	})
}

// calm reports whether no fault and no hold concerned a key between two times.
func (j *judge) calm(key string, from, to int64) bool {
	return !slices.ContainsFunc(j.h.Faults, func(f history.Fault) bool {
		return concerns(f, key) && j.during(f, from-aftermath, to)
	})
}

// without returns the part of a time span in which a timer had no reason to wait, in ms.
func (j *judge) without(from, to int64) int64 {
	return max(0, to-from-j.stalled(from, to)-storing*j.stored(from, to))
}

// excused reports whether a firing may have been claimed after its limit on lateness.
func (j *judge) excused(key string, f *firing) bool {
	return j.without(f.from, f.to+f.late) <= innocentMost || !j.calm(key, f.op.Invoked, f.to+f.late)
}

// settled reports whether a firing was certainly claimed before a cancellation that came after its due time: no fault
// delayed the claim.
func (j *judge) settled(key string, f *firing) bool {
	return f.freed > f.to && j.without(f.to, f.freed) > innocentMost && j.calm(key, f.op.Invoked, f.freed)
}
