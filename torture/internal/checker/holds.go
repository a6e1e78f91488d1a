package checker

import (
	"cmp"
	"slices"
	"strings"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// hold is one hold, from the command that made it to the end of the one that ended it.
type hold struct {
	namespace string
	begun     window           // before it nothing is held, and after it everything, if it is certain
	since     window           // when it began by Redis's clock
	ended     window           // before it everything is held, and after it nothing
	kind      history.HoldKind // how it was resumed
	rate      int64            // of history.ResumeRate, timers per second
	certain   bool             // all timerds have confirmed it, and no failover can have lost it
	released  bool             // no failover can have lost what its resume did
}

// newHolds returns all holds of a history, in the order in which they began.
func newHolds(h *history.History, failovers []window) []*hold {
	var all []*hold
	open := map[string]*hold{}
	ops := slices.Clone(h.Holds)
	slices.SortStableFunc(ops, func(a, b history.HoldOp) int { return cmp.Compare(a.Invoked, b.Invoked) })
	for _, op := range ops {
		one := open[op.Namespace]
		switch {
		case op.Outcome == history.Failed:
		case op.Kind == history.Hold:
			one = &hold{
				namespace: op.Namespace, begun: window{op.Invoked, op.Ended}, since: window{op.Invoked, op.Ended},
				ended: window{never, h.End.At}, kind: history.Over,
				certain: op.Outcome == history.OK && !overlaps(failovers, op.Invoked, op.Ended+hears),
			}
			if op.Since != 0 {
				one.since = window{op.Since, op.Since}
			}
			if op.For != 0 {
				one.ended.from = one.since.from + op.For
			}
			open[op.Namespace], all = one, append(all, one)
			if op.Unsafe && overlaps(failovers, op.Invoked, h.End.At) {
				one.certain = false
			}
		case one != nil:
			if op.Kind != history.Over {
				one.kind, one.rate, one.ended.from = op.Kind, op.Rate, min(one.ended.from, op.Invoked)
			}
			if op.Outcome == history.OK {
				one.ended.to = max(op.Ended, one.ended.from)
				delete(open, op.Namespace)
			}
		}
	}
	for _, one := range all {
		one.ended.from = min(one.ended.from, one.ended.to)
		one.released = !overlaps(failovers, one.ended.from-hears, one.ended.to+hears)
	}
	return all
}

// lengths returns by how many ms a shift moves what is held, at least and at most.
func (h *hold) lengths() window {
	return window{max(0, h.ended.from-h.since.to), h.ended.to - h.since.from}
}

// parts returns how many parts its namespace has: of several holds the one with the most is the narrowest.
func (h *hold) parts() int { return strings.Count(h.namespace, ":") }

// keyHolds are the holds of one key.
type keyHolds struct {
	all  []*hold
	sure []window // in which nothing is claimed, sorted, apart
}

func holdsOf(key string, all []*hold) keyHolds {
	var k keyHolds
	for _, h := range all {
		if !history.Matches(h.namespace, key) {
			continue
		}
		k.all = append(k.all, h)
		if h.certain && h.begun.to < h.ended.from {
			k.sure = append(k.sure, window{h.begun.to, h.ended.from - 1})
		}
	}
	k.sure = merge(k.sure)
	return k
}

// over returns the time in which a timer that is due at a time is held for certain: the claim cannot have come before it.
func (k *keyHolds) over(due window) (window, bool) {
	for _, w := range k.sure {
		if w.from < due.from && due.to <= w.to {
			return w, true
		}
	}
	return window{}, false
}

// alone tells whether no other hold can have held anything while one ended.
func (k *keyHolds) alone(h *hold) bool {
	return !slices.ContainsFunc(k.all, func(o *hold) bool {
		return o != h && o.begun.from <= h.ended.to && h.ended.from <= o.ended.to
	})
}

// kept tells whether another hold kept for certain what one let go.
func (k *keyHolds) kept(h *hold) bool {
	return slices.ContainsFunc(k.all, func(o *hold) bool {
		return o != h && o.certain && o.begun.to < h.ended.from && h.ended.to < o.ended.from
	})
}

// deciders returns the holds of which one decides what becomes of a firing when the last one ends that held it: a narrower
// one that was resumed before, while that one lasted, or else the last one itself. If there is only one, it is certain.
func (k *keyHolds) deciders(f *firing, last *hold) []*hold {
	var narrower []*hold // in the order in which they began: a later one takes the place of an earlier one
	certain := false
	for _, h := range k.all {
		if h.parts() <= last.parts() || h.ended.to < last.begun.from || last.ended.to < h.ended.from {
			continue
		}
		if !slices.ContainsFunc(f.dues, func(due window) bool { return due.from <= h.ended.to }) {
			continue
		}
		narrower = append(narrower, h)
		certain = h.certain && h.released && h.kind != history.Over && last.begun.to < h.ended.from && h.ended.to < last.ended.from &&
			!slices.ContainsFunc(f.dues, func(due window) bool { return due.to >= h.ended.from })
	}
	if certain {
		return narrower[len(narrower)-1:]
	}
	return append(narrower, last)
}

// released tells whether a firing was held for certain until just this hold ended.
func (k *keyHolds) released(f *firing, h *hold) bool {
	if len(f.dues) != 1 || !h.certain || !h.released || !k.alone(h) {
		return false
	}
	w, ok := k.over(f.dues[0])
	return ok && w.to == h.ended.from-1
}

// resumed takes in what the ends of holds did to firings, of those that ended before an operation did.
func (t *timeline) resumed(op window) {
	for len(t.ends) > 0 && t.ends[0].ended.from <= op.to {
		h := t.ends[0]
		t.ends, t.over = t.ends[1:], append(t.over, h)
		t.resume(h, h.ended.to < op.from)
	}
}

// resume takes in the end of a hold. It is over if nothing else was done with the key meanwhile.
func (t *timeline) resume(h *hold, over bool) {
	var again []*firing // that are pending once more
	certain := over
	for _, f := range t.firings {
		sure := over && f.force == must && t.holds.released(f, h)
		if t.release(f, h, sure) {
			again, certain = append(again, f), certain && sure
		}
	}
	if t.open != nil && (t.open.to < h.ended.from || slices.Contains(again, t.open)) {
		t.open = nil
	}
	t.retries = slices.DeleteFunc(t.retries, func(f *firing) bool { return slices.Contains(again, f) })
	if certain && len(again) == 1 && t.open == nil {
		t.open = again[0]
		return
	}
	t.retries = append(t.retries, again...)
}

// release takes in what the end of a hold did to a firing, for certain or perhaps, and tells whether it is pending once more.
func (t *timeline) release(f *firing, h *hold, sure bool) bool {
	if f.dead || f.force == mustNot || f.from > h.ended.to || t.holds.kept(h) {
		return false
	}
	deciders := t.holds.deciders(f, h)
	sure = sure && len(deciders) == 1
	fired, again := t.fired(f, h.ended.from), false
	for _, by := range deciders {
		if by.kind == history.ResumeDead {
			f.buried = append(f.buried, by)
		}
		if fired {
			continue
		}
		if sure {
			f.held = by
			f.mustDie = f.mustDie || by.kind == history.ResumeDead
		}
		if by.kind == history.ResumeShift {
			f.shift(by, sure, t.hearing.delayed(h.ended.from, h.ended.to+by.lengths().to))
			again = true
		}
	}
	return again
}

// shift moves a firing by the length of a hold, for certain or perhaps, and by what carrying its key may add.
func (f *firing) shift(h *hold, sure bool, delayed int64) {
	by := h.lengths()
	var moved []window
	for _, d := range f.dues {
		moved = append(moved, window{d.from + by.from, d.to + by.to + delayed})
	}
	f.was = 0
	if sure {
		if d := f.dues[0]; d.from == d.to && delayed == 0 {
			f.was = d.from
		}
	} else {
		moved = append(moved, f.dues...)
	}
	f.setDues(moved...)
}

// fired tells whether a message of a firing was stored before a time, if not as it should be.
func (t *timeline) fired(f *firing, before int64) bool {
	return slices.ContainsFunc(t.messages, func(m history.Message) bool {
		return m.Stored < before && (f.matches(m) || f.isOf(m) && f.isDue(m.Due, 0) && !t.isOther(f, m))
	})
}

// isOther tells whether a message may be of another firing, which is due at about the same time.
func (t *timeline) isOther(f *firing, m history.Message) bool {
	return slices.ContainsFunc(t.firings, func(o *firing) bool { return o != f && o.isOf(m) })
}

// heldDuring returns the firings that are due, by the end of an operation, and held for certain from before that until its end:
// a cancellation meets them.
func (t *timeline) heldDuring(op history.Op) []*firing {
	var all []*firing
	for _, f := range t.firings {
		if f.force != must || f.dead || len(f.dues) != 1 || f.from > op.After+1 || t.hearing.failover(f.op.Ended, op.Ended) {
			continue
		}
		if w, ok := t.holds.over(f.dues[0]); ok && op.After <= w.to && !t.fired(f, op.Before) {
			all = append(all, f)
		}
	}
	return all
}
