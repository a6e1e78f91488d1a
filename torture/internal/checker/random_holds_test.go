package checker_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/timerd-io/timerd/torture/internal/checker"
	"github.com/timerd-io/timerd/torture/internal/history"
)

// span is one hold, in ms from the beginning on, and how it is resumed.
type span struct {
	namespace string
	from, to  int64
	how       history.HoldKind
	asked     int64 // when that was asked for first
	released  int64 // how many timers, so far
}

// heldWorld is a perfect timerd with holds.
type heldWorld struct {
	*world
	spans []*span
	fates []fate // of the timers
}

// fate is the fate of a timer.
type fate struct {
	op      history.Op
	due     int64 // at last
	claim   int64 // when it is claimed
	message int   // which one it is, -1 if there is none
}

// holding returns a hold of a key at a time other than one.
func (w *heldWorld) holding(key string, at int64, other *span) *span {
	i := slices.IndexFunc(w.spans, func(s *span) bool {
		return s != other && history.Matches(s.namespace, key) && s.from+middle <= at && at < s.to+middle
	})
	if i < 0 {
		return nil
	}
	return w.spans[i]
}

// decider returns the hold whose resume decides about a timer when the last one ends that holds it: a narrower one that
// was resumed while that one lasted.
func (w *heldWorld) decider(f fate, last *span) *span {
	by := last
	for _, s := range w.spans {
		if len(s.namespace) > len(last.namespace) && history.Matches(s.namespace, f.op.Key) && last.from < s.to &&
			s.to <= last.to && f.due <= s.to+middle {
			by = s
		}
	}
	return by
}

// live plays the life of a timer until its claim, or a cancellation, and reports whether it is claimed.
func (w *heldWorld) live(op history.Op, cancelled int64) (f fate, dead, claimed bool) {
	f = fate{op: op, due: op.Due - began, claim: op.Due - began, message: -1}
	for {
		s := w.holding(op.Key, f.claim, nil)
		if s == nil || dead {
			return f, dead, f.claim < cancelled
		}
		f.claim = s.to + middle
		if f.claim >= cancelled {
			return f, false, false
		}
		if w.holding(op.Key, f.claim, s) != nil {
			continue
		}
		s = w.decider(f, s)
		switch s.how {
		case history.ResumeShift:
			f.due += s.to - s.from
			f.claim = max(f.claim, f.due)
		case history.ResumeDead:
			dead = true
		case history.ResumeRate:
			f.claim += s.released * 100
			s.released++
		}
	}
}

// publish writes the message of a claimed timer.
func (w *heldWorld) publish(f *fate, dead bool) {
	late := f.claim - f.due
	tooLate := f.op.Late > 0 && late > f.op.Late && !dead
	if tooLate && f.op.Drop {
		return
	}
	m := at(w.emit(f.op.Key, began+f.due, 1, f.op.Payload), f.claim+1)
	switch {
	case dead:
		letter(m, "held")
	case tooLate:
		letter(m, fmt.Sprintf("late: %v after its due time, at most %v", time.Duration(late)*time.Millisecond,
			time.Duration(f.op.Late)*time.Millisecond))
	}
	f.message = len(w.Messages) - 1
}

// randomHeld writes a clean history of timers that are held now and then.
func randomHeld(rt *rapid.T) *heldWorld {
	w := &heldWorld{world: newWorld()}
	for _, namespace := range []string{"held", "held:b"} {
		from := int64(rapid.IntRange(0, 6000).Draw(rt, "from"))
		for range rapid.IntRange(1, 3).Draw(rt, "holds") {
			s := &span{namespace: namespace, from: from, to: from + int64(rapid.IntRange(300, 8000).Draw(rt, "length"))}
			s.asked = s.to
			s.how = rapid.SampledFrom([]history.HoldKind{
				history.ResumeNow, history.ResumeRate, history.ResumeShift, history.ResumeDead,
			}).Draw(rt, "how")
			w.hold(s.namespace, s.from, s.to, s.how)
			w.interrupt(rapid.IntRange(-1, 1).Draw(rt, "interrupted"), s)
			w.spans = append(w.spans, s)
			from = s.to + int64(rapid.IntRange(300, 6000).Draw(rt, "pause"))
		}
	}
	for n := range rapid.IntRange(5, 20).Draw(rt, "timers") {
		module := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "module")
		op := history.Op{Kind: history.Timer, Key: fmt.Sprintf("held:%s:c:%d", module, n), Payload: fmt.Sprint(n),
			Attempt: 1}
		op.TTL = int64(rapid.IntRange(100, 15_000).Draw(rt, "ttl"))
		op.Late, op.Drop = int64(rapid.SampledFrom([]int{0, 500, 1000, 3000}).Draw(rt, "late")),
			rapid.Bool().Draw(rt, "drop")
		op.Drop = op.Drop && op.Late > 0
		set := int64(rapid.IntRange(0, 12_000).Draw(rt, "set"))
		op = w.do(set, op)
		cancelled := int64(1 << 40)
		if rapid.IntRange(0, 3).Draw(rt, "cancels") == 0 {
			cancelled = set + int64(rapid.IntRange(10, 30_000).Draw(rt, "cancelled"))
		}
		f, dead, claimed := w.live(op, cancelled)
		if cancelled < 1<<40 {
			w.do(cancelled, history.Op{Kind: history.Cancel, Key: op.Key,
				Reply: map[bool]string{true: "fired", false: "cancelled"}[claimed]})
		}
		if claimed {
			w.publish(&f, dead)
			w.fates = append(w.fates, f)
		}
	}
	return w
}

// interrupt has the resume of a hold be asked for twice: before it, by a command that was killed before it did
// anything, or after it, because the command that did it was killed.
func (w *heldWorld) interrupt(when int, s *span) {
	last := &w.Holds[len(w.Holds)-1]
	again := *last
	switch when {
	case -1:
		s.asked -= (s.to - s.from) / 3
		last.Invoked, last.Ended = began+s.asked, began+s.asked+1
	case 1:
		again.Invoked, again.Ended = last.Ended+50, last.Ended+100
	default:
		return
	}
	last.Outcome = history.Unknown
	w.Holds = append(w.Holds, again)
}

// one draws one of the timers that came as an event, for which anything else would be wrong.
func (w *heldWorld) one(rt *rapid.T, fits func(fate) bool) *fate {
	var all []fate
	for _, f := range w.fates {
		if f.message >= 0 && fits(f) {
			all = append(all, f)
		}
	}
	if len(all) == 0 {
		rt.Skip()
	}
	f := rapid.SampledFrom(all).Draw(rt, "timer")
	return &f
}

func TestCleanHistoriesOfHoldsPass(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := randomHeld(rt)
		r := checker.Judge(&w.History)
		for _, v := range r.Violations {
			rt.Errorf("%s: %s\n%s", v.Class, v.Text, strings.Join(v.Tale, "\n"))
		}
		if r.Strict+r.Forbidden+r.Lenient < len(w.fates) {
			rt.Errorf("%d judged, want at least %d", r.Strict+r.Forbidden+r.Lenient, len(w.fates))
		}
	})
}

func TestFaultsOfHoldsAreFound(t *testing.T) {
	for name, c := range map[string]struct {
		class checker.Class
		plant func(rt *rapid.T, w *heldWorld)
	}{
		"lost": {checker.Lost, func(rt *rapid.T, w *heldWorld) {
			f := w.one(rt, func(f fate) bool {
				return !f.op.Drop && !slices.ContainsFunc(w.Ops,
					func(op history.Op) bool { return op.Key == f.op.Key && op.Kind == history.Cancel })
			})
			w.Messages = slices.Delete(w.Messages, f.message, f.message+1)
		}},
		"twice": {checker.Duplicate, func(rt *rapid.T, w *heldWorld) {
			f := w.one(rt, func(fate) bool { return true })
			w.Messages = append(w.Messages, w.Messages[f.message])
		}},
		"claimed while held": {checker.Held, func(rt *rapid.T, w *heldWorld) {
			f := w.one(rt, func(f fate) bool {
				return w.Messages[f.message].Stream == history.FiredStream &&
					w.sure(f) != nil
			})
			at(&w.Messages[f.message], min(f.claim, w.sure(*f).asked-1))
		}},
		"beyond its limit": {checker.TooLate, func(rt *rapid.T, w *heldWorld) {
			f := w.one(rt, func(f fate) bool {
				return w.Messages[f.message].Stream == history.FiredStream &&
					f.op.Late > 0
			})
			at(&w.Messages[f.message], f.due+f.op.Late+2200+int64(rapid.IntRange(0, 9000).Draw(rt, "later")))
		}},
		"an event instead of a dead letter": {checker.TooLate, func(rt *rapid.T, w *heldWorld) {
			f := w.one(rt, func(f fate) bool {
				return strings.HasPrefix(w.Messages[f.message].Reason, "late") && f.claim-f.due > f.op.Late+2200
			})
			w.Messages[f.message].Stream, w.Messages[f.message].Reason = history.FiredStream, ""
		}},
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				w := randomHeld(rt)
				c.plant(rt, w)
				if n := checker.Judge(&w.History).Count(c.class); n != 1 {
					rt.Errorf("%d found, want 1: %s", n, w.verdicts())
				}
			})
		})
	}
}

// sure returns a hold in which a timer became due for certain, nil if there is none.
func (w *heldWorld) sure(f fate) *span {
	i := slices.IndexFunc(w.spans, func(s *span) bool {
		return history.Matches(s.namespace, f.op.Key) && s.from+took < f.due && f.due < s.asked
	})
	if i < 0 {
		return nil
	}
	return w.spans[i]
}
