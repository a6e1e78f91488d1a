package checker_test

import (
	"testing"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// A guard decides at the claim, so between the due time and the event or the end.
func TestVerdictsOnGuards(t *testing.T) {
	const key = "a:kept:c:{1}"
	nats := []history.Fault{deaf(history.Delays, 4000, 9000)}
	guarded := func(w *world, guard string) history.Op {
		return w.do(0, history.Op{Kind: history.Timer, Key: key, Payload: "p", Attempt: 1, TTL: 5000, Guard: guard})
	}
	set := func(w *world, at, ttl int64) { w.do(at, history.Op{Kind: history.SetGuard, Key: key, TTL: ttl}) }
	del := func(w *world, at int64) { w.do(at, history.Op{Kind: history.DelGuard, Key: key}) }
	for _, c := range []struct {
		name   string
		faults []history.Fault
		play   func(w *world)
		want   string
	}{
		{"never there", nil, func(w *world) { w.fire(guarded(w, history.Unless)) }, ""},
		{"never there, and lost", nil, func(w *world) { guarded(w, history.Unless) }, "lost"},
		{"there, and stopped", nil, func(w *world) {
			guarded(w, history.Unless)
			set(w, 1000, 0)
		}, ""},
		{"there, and fired", nil, func(w *world) {
			op := guarded(w, history.Unless)
			set(w, 1000, 0)
			w.fire(op)
		}, "guarded"},
		{"gone before it was due, and lost", nil, func(w *world) {
			guarded(w, history.Unless)
			set(w, 1000, 0)
			del(w, 4000)
		}, "lost"},
		{"expired before it was due, and lost", nil, func(w *world) {
			guarded(w, history.Unless)
			set(w, 1000, 3000)
		}, "lost"},
		{"expired before it was due, and fired", nil, func(w *world) {
			op := guarded(w, history.Unless)
			set(w, 1000, 3000)
			w.fire(op)
		}, ""},
		{"expired after it was due, and fired before that", nil, func(w *world) {
			op := guarded(w, history.Unless)
			set(w, 1000, 4100)
			w.fire(op)
		}, "guarded"},
		{"expired after it was due, and fired after that", nats, func(w *world) {
			op := guarded(w, history.Unless)
			set(w, 1000, 4100)
			at(w.fire(op), 5200)
		}, ""},
		{"expired after it was due, and stopped", nil, func(w *world) {
			guarded(w, history.Unless)
			set(w, 1000, 4100)
		}, ""},
		{"came at the due time, and fired", nil, func(w *world) {
			op := guarded(w, history.Unless)
			set(w, 5000, 0)
			w.fire(op)
		}, ""},
		{"came at the due time, and stopped", nil, func(w *world) {
			guarded(w, history.Unless)
			set(w, 5000, 0)
		}, ""},
		{"came long after the due time, and lost", nil, func(w *world) {
			guarded(w, history.Unless)
			set(w, 9000, 0)
		}, "lost"},
		{"came long after the due time, as did the claim", nats, func(w *world) {
			guarded(w, history.Unless)
			set(w, 8000, 0)
		}, ""},
		{"came perhaps", nil, func(w *world) {
			guarded(w, history.Unless)
			w.do(1000, history.Op{Kind: history.SetGuard, Key: key, Outcome: history.Unknown})
		}, ""},
		{"could not come, and lost", nil, func(w *world) {
			guarded(w, history.Unless)
			w.do(1000, history.Op{Kind: history.SetGuard, Key: key, Outcome: history.Failed})
		}, "lost"},
		{"dropped by Redis perhaps", []history.Fault{deaf(history.KeysGo, 2000, 3000)}, func(w *world) {
			op := guarded(w, history.Unless)
			set(w, 1000, 9000)
			w.fire(op)
		}, ""},
		{"without an end, and not dropped by Redis", []history.Fault{deaf(history.KeysGo, 2000, 3000)}, func(w *world) {
			op := guarded(w, history.Unless)
			set(w, 1000, 0)
			w.fire(op)
		}, "guarded"},
		{"wanted, and never there", nil, func(w *world) { guarded(w, history.If) }, ""},
		{"wanted, never there, and fired", nil, func(w *world) { w.fire(guarded(w, history.If)) }, "guarded"},
		{"wanted, there, and fired", nil, func(w *world) {
			set(w, 0, 0)
			w.fire(guarded(w, history.If))
		}, ""},
		{"wanted, there, and lost", nil, func(w *world) {
			set(w, 0, 0)
			guarded(w, history.If)
		}, "lost"},
		{"moved, it keeps its guard", nil, func(w *world) {
			guarded(w, history.Unless)
			set(w, 500, 0)
			op := w.do(1000, history.Op{Kind: history.Expire, Key: key, TTL: 4500, Reply: "1"})
			w.emit(key, op.Due, 1, "p")
		}, "guarded"},
		{"set anew, it has none", nil, func(w *world) {
			guarded(w, history.Unless)
			set(w, 500, 0)
			w.fire(w.set(1000, history.Timer, key, "q", 4500))
		}, ""},
		{"the retry inherits it", nil, func(w *world) {
			m := w.fire(guarded(w, history.Unless))
			set(w, 14_000, 0)
			w.do(15_000, retryOf(m, 5000))
		}, ""},
		{"the retry inherits it, and fires", nil, func(w *world) {
			m := w.fire(guarded(w, history.Unless))
			set(w, 14_000, 0)
			w.do(15_000, retryOf(m, 5000))
			w.emit(key, began+20_001, 2, "p")
		}, "guarded"},
		{"the dead letter of its last retry comes", nil, func(w *world) {
			m := w.fire(guarded(w, history.Unless))
			set(w, 14_000, 0)
			again := retryOf(m, 0)
			again.Max = again.Attempt
			w.do(15_000, again)
		}, "lost"},
		{"occurrences that it stops", nil, func(w *world) {
			op := w.do(0, history.Op{Kind: history.Repeat, Key: key, Payload: "p", Attempt: 1, At: began + 5000,
				Every: 5000, Until: began + 15_000, CatchUp: true, Guard: history.Unless})
			w.Ops[len(w.Ops)-1].Due = op.At
			set(w, 1000, 8000)
			w.emit(key, began+10_000, 1, "p").Occurrence = 1
			w.emit(key, began+15_000, 1, "p").Occurrence = 2
		}, ""},
		{"occurrences after the first, which it stops, beside an uncertain clock",
			[]history.Fault{deaf(history.Carries, 4000, 9000)}, func(w *world) {
				op := w.do(0, history.Op{Kind: history.Repeat, Key: key, Payload: "p", Attempt: 1, At: began + 5000,
					Every: 1000, Until: began + 8000, CatchUp: true, Guard: history.Unless})
				w.Ops[len(w.Ops)-1].Due = op.At
				set(w, 1000, 4500)
				w.occur(op, 1, 2, 3)
			}, ""},
		{"occurrences after one that it stops, shifted by an uncertain resume", nil, func(w *world) {
			op := w.do(0, history.Op{Kind: history.Repeat, Key: key, Payload: "p", Attempt: 1, At: began + 5000,
				Every: 30, Until: began + 5090, CatchUp: true, Guard: history.Unless})
			w.Ops[len(w.Ops)-1].Due = op.At
			set(w, 4500, 510)
			hold := w.hold("a", 5000, 20_000, history.ResumeShift)
			for i := range int64(3) {
				after := hold + 30*(i+1)
				at(w.emit(key, op.At+after, 1, "p"), 5000+after+60).Occurrence = i + 1
			}
		}, ""},
		{"held beyond the end of its guard", nil, func(w *world) {
			w.hold("a", 1000, 9000, history.ResumeNow)
			op := guarded(w, history.Unless)
			set(w, 1000, 6000)
			at(w.fire(op), 9050)
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(c.faults...)
			c.play(w)
			if got := w.verdicts(); got != c.want {
				t.Errorf("judged %q, want %q", got, c.want)
				tell(t, w)
			}
		})
	}
}
