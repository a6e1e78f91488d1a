package checker

import (
	"cmp"
	"slices"
	"strings"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// hold is one hold. It lasts from the command that made it to the end of the command that ended it.
type hold struct {
	namespace string
	begun     window           // the hold holds nothing before it, and everything after it, if certain
	since     window           // its beginning by Redis's clock
	ended     window           // the hold holds everything before it, and nothing after it
	kind      history.HoldKind // how it was resumed
	rate      int64            // of history.ResumeRate, timers per second
	certain   bool             // all timerds have confirmed it, and no failover can have lost it
	released  bool             // no failover can have lost the effects of its resume
}

// newHolds returns all holds of a history, by beginning.
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
				certain: op.Outcome == history.OK && !overlaps(failovers, op.Invoked, op.Ended+hearTime),
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
		one.released = !overlaps(failovers, one.ended.from-hearTime, one.ended.to+hearTime)
	}
	return all
}

// lengths returns the least and the greatest length of a shift of held timers, in ms.
func (h *hold) lengths() window {
	return window{max(0, h.ended.from-h.since.to), h.ended.to - h.since.from}
}

// parts returns the number of parts of the hold's namespace. Of several holds, the one with the most parts is the
// narrowest.
func (h *hold) parts() int { return strings.Count(h.namespace, ":") }

// keyHolds are the holds of one key.
type keyHolds struct {
	all  []*hold
	sure []window // without a claim, sorted, apart
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

// over returns the window in which a timer with a due time is certainly on hold. It returns none if the timer may have
// been claimed before.
func (k *keyHolds) over(due window) (window, bool) {
	for _, w := range k.sure {
		if w.from < due.from && due.to <= w.to {
			return w, true
		}
	}
	return window{}, false
}

// alone reports whether no other hold can have covered a timer while h ended.
func (k *keyHolds) alone(h *hold) bool {
	return !slices.ContainsFunc(k.all, func(o *hold) bool {
		return o != h && o.begun.from <= h.ended.to && h.ended.from <= o.ended.to
	})
}

// kept reports whether another hold certainly covered the timers that h released.
func (k *keyHolds) kept(h *hold) bool {
	return slices.ContainsFunc(k.all, func(o *hold) bool {
		return o != h && o.certain && o.begun.to < h.ended.from && h.ended.to < o.ended.from
	})
}

// deciders returns the holds that may decide about a firing when its last hold ends. A narrower hold that was resumed
// during the last one decides, or else the last one itself. If deciders returns a single hold, that one certainly
// decides.
func (k *keyHolds) deciders(f *firing, last *hold) []*hold {
	var narrower []*hold // by beginning: a later one replaces an earlier one
	certain := false
	for _, h := range k.all {
		if h.parts() <= last.parts() || h.ended.to < last.begun.from || last.ended.to < h.ended.from {
			continue
		}
		if !slices.ContainsFunc(f.dues, func(due window) bool { return due.from <= h.ended.to }) {
			continue
		}
		narrower = append(narrower, h)
		certain = h.certain && h.released && h.kind != history.Over && last.begun.to < h.ended.from &&
			h.ended.to < last.ended.from &&
			!slices.ContainsFunc(f.dues, func(due window) bool { return due.to >= h.ended.from })
	}
	if certain {
		return narrower[len(narrower)-1:]
	}
	return append(narrower, last)
}

// released reports whether a firing was certainly on hold until the end of exactly this hold.
func (k *keyHolds) released(f *firing, h *hold) bool {
	if len(f.dues) != 1 || !h.certain || !h.released || !k.alone(h) {
		return false
	}
	w, ok := k.over(f.dues[0])
	return ok && w.to == h.ended.from-1
}

// resumed applies the ends of holds to the firings, up to the end of an operation.
func (t *timeline) resumed(op window) {
	for len(t.ends) > 0 && t.ends[0].ended.from <= op.to {
		h := t.ends[0]
		t.ends, t.over = t.ends[1:], append(t.over, h)
		t.resume(h, h.ended.to < op.from)
	}
}

// resume applies the end of a hold to the firings. over is set if no operation on the key came before the end was
// complete.
func (t *timeline) resume(h *hold, over bool) {
	var again []*firing // pending again
	certain := over
	for _, f := range t.firings {
		sure := over && f.force == must && !f.follows && t.holds.released(f, h)
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

// release applies the end of a hold to a firing, for certain if sure is set and otherwise perhaps. It reports whether
// the firing is pending again.
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

// shift moves a firing by the length of a hold, for certain if sure is set and otherwise perhaps. delayed is the time
// that a move of the key to another server may add.
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

// fired reports whether a message of a firing, right or wrong, was stored before a time.
func (t *timeline) fired(f *firing, before int64) bool {
	return slices.ContainsFunc(t.messages, func(m history.Message) bool {
		return m.Stored < before && (f.matches(m) || f.isOf(m) && f.isDue(m.Due, 0) && !t.isOther(f, m))
	})
}

// isOther reports whether a message may belong to another firing with about the same due time.
func (t *timeline) isOther(f *firing, m history.Message) bool {
	return slices.ContainsFunc(t.firings, func(o *firing) bool { return o != f && o.isOf(m) })
}

// heldDuring returns the firings that were certainly due and on hold during a whole operation, so that a cancellation
// finds them.
func (t *timeline) heldDuring(op history.Op) []*firing {
	var all []*firing
	for _, f := range t.firings {
		if f.force != must || f.dead || len(f.dues) != 1 || f.from > op.After+1 ||
			t.hearing.failover(f.op.Ended, op.Ended) {
			continue
		}
		if w, ok := t.holds.over(f.dues[0]); ok && op.After <= w.to && !t.fired(f, op.Before) {
			all = append(all, f)
		}
	}
	return all
}
