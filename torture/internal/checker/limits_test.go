package checker_test

import (
	"testing"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/torture/internal/history"
)

// Timers with limits on lateness get their verdicts: fired, a dead letter, or dropped.
func TestVerdictsOnLimits(t *testing.T) {
	const key = "a:b:c:1"
	nats := []history.Fault{deaf(history.Delays, 4000, 9000)}
	limited := func(w *world, drop bool) history.Op {
		return w.do(0, history.Op{Kind: history.Timer, Key: key, Payload: "p", Attempt: 1, TTL: 5000, Late: 1000,
			Drop: drop})
	}
	const reason = "late: 4s after its due time, at most 1s"
	unheard := []history.Fault{deaf(history.Deafens, 0, 9000), deaf(history.Delays, 20_000, 29_000)}
	// It returns the second attempt of a plain timer in a namespace with a limit, which ran out unheard and whose event
	// was stored a while after.
	retriedUnheard := func(w *world) *history.Message {
		op := w.do(100, history.Op{Kind: history.Set, Key: key, Payload: "p", Attempt: 1, TTL: 4900, Late: 1000})
		m := w.emit(key, op.Due+300, 1, "")
		m.Status, m.Trigger = event.StatusMissing, "expired"
		again := retryOf(m, 5000)
		again.Status = m.Status
		w.do(15_000, again)
		second := w.emit(key, began+20_001, 2, "")
		second.Status = event.StatusMissing
		return second
	}
	for _, c := range []struct {
		name   string
		faults []history.Fault
		play   func(w *world)
		want   string
	}{
		{"in time", nil, func(w *world) { w.fire(limited(w, false)) }, ""},
		{"claimed in time, and published within the lease", nats, func(w *world) {
			at(w.fire(limited(w, false)), 5000+1000+2000)
		}, ""},
		{"claimed too late", nats, func(w *world) { at(w.fire(limited(w, false)), 5000+1000+2500) }, "too late"},
		{"stored late by NATS", nats, func(w *world) {
			at(w.fire(limited(w, false)), 5500).Stored += 6000
		}, ""},
		{"a dead letter", nats, func(w *world) { at(letter(w.fire(limited(w, false)), reason), 9010) }, ""},
		{"neither", nats, func(w *world) { limited(w, false) }, "lost"},
		{"both", nats, func(w *world) {
			op := limited(w, false)
			w.fire(op)
			at(letter(w.fire(op), reason), 9010)
		}, "duplicate"},
		{"both, as a failover lost the claim", []history.Fault{deaf(history.Failover, 4990, 9000)}, func(w *world) {
			op := limited(w, false)
			w.fire(op)
			at(letter(w.fire(op), reason), 9010)
		}, ""},
		{"both, and the failover came after it", append([]history.Fault{deaf(history.Failover, 9200, 9900)}, nats...),
			func(w *world) {
				op := limited(w, false)
				w.fire(op)
				at(letter(w.fire(op), reason), 9010)
			}, "duplicate"},
		{"both, as the dead letter says", nats, func(w *world) {
			op := limited(w, false)
			w.fire(op)
			at(letter(w.fire(op), reason+"; may have been published"), 9010)
		}, ""},
		{"a dead letter that was stored before its time", nats, func(w *world) {
			at(letter(w.fire(limited(w, false)), reason), 8990)
		}, "too late"},
		{"a dead letter that was in time", nats, func(w *world) {
			at(letter(w.fire(limited(w, false)), "late: 1s after its due time, at most 1s"), 9010)
		}, "too late"},
		{"a dead letter by another limit", nats, func(w *world) {
			at(letter(w.fire(limited(w, false)), "late: 4s after its due time, at most 2s"), 9010)
		}, "too late"},
		{"a dead letter of a timer without a limit", nats, func(w *world) {
			at(letter(w.fire(w.set(0, history.Timer, key, "p", 5000)), reason), 9010)
		}, "too late"},
		{"a dead letter that says nothing", nats, func(w *world) {
			at(letter(w.fire(limited(w, false)), "late: 4s"), 9010)
		}, "malformed"},
		{"a dead letter though nothing kept it", nil, func(w *world) {
			op := limited(w, false)
			w.Ops[0].Late = 2500
			at(letter(w.fire(op), "late: 4s after its due time, at most 2.5s"), 9010)
		}, "too late"},
		{"forgotten", nats, func(w *world) { limited(w, true) }, ""},
		{"forgotten though nothing kept it", nil, func(w *world) {
			limited(w, true)
			w.Ops[0].Late = 2500
		}, "lost"},
		{"a dead letter of a timer to forget", nats, func(w *world) {
			at(letter(w.fire(limited(w, true)), reason), 9010)
		}, "too late"},
		{"the same, as it may have been published", nats, func(w *world) {
			at(letter(w.fire(limited(w, true)), reason+"; may have been published"), 9010)
		}, ""},
		{"a limit outlives an extension", nats, func(w *world) {
			limited(w, false)
			op := w.do(1000, history.Op{Kind: history.Expire, Key: key, TTL: 4500, Reply: "1"})
			at(w.emit(key, op.Due, 1, "p"), 9000)
		}, "too late"},
		{"a limit does not outlive a new timer", nats, func(w *world) {
			limited(w, false)
			at(w.fire(w.set(1000, history.Timer, key, "q", 4500)), 9000)
		}, ""},
		{"a retry inherits it, from its own due time", []history.Fault{deaf(history.Delays, 20_000, 29_000)},
			func(w *world) {
				m := w.fire(limited(w, false))
				w.do(15_000, retryOf(m, 5000))
				w.emit(key, began+20_001, 2, "p")
			}, ""},
		{"a retry does not inherit it", []history.Fault{deaf(history.Delays, 20_000, 29_000)}, func(w *world) {
			m := w.fire(limited(w, false))
			w.do(15_000, retryOf(m, 5000))
			at(w.emit(key, began+20_001, 2, "p"), 29_000)
		}, "too late"},
		{"the retry of what timerd had not heard of has its namespace's", unheard, func(w *world) {
			m := letter(retriedUnheard(w), "late: 9s after its due time, at most 1s")
			m.Time, m.Stored = began+29_010, began+29_012
		}, ""},
		{"the retry of what timerd had not heard of does not", unheard, func(w *world) {
			at(retriedUnheard(w), 29_000)
		}, "too late"},
		{"shifted, it is not late", nil, func(w *world) {
			by := w.hold("a", 1000, 9000, history.ResumeShift)
			w.emit(key, limited(w, false).Due+by, 1, "p")
		}, ""},
		{"held, it is late", nil, func(w *world) {
			w.hold("a", 1000, 9000, history.ResumeNow)
			at(letter(w.fire(limited(w, false)), "late: 4.02s after its due time, at most 1s"), 9050)
		}, ""},
		{"held, it is late, and fires", nil, func(w *world) {
			w.hold("a", 1000, 9000, history.ResumeNow)
			at(w.fire(limited(w, false)), 9050)
		}, "too late"},
		{"held, it is late by less than a lease, and fires", nil, func(w *world) {
			w.hold("a", 1000, 6001, history.ResumeNow)
			at(w.fire(limited(w, false)), 6002)
		}, "too late"},
		{"held until its limit, and fires", nil, func(w *world) {
			w.hold("a", 1000, 6000, history.ResumeNow)
			at(w.fire(limited(w, false)), 6002)
		}, ""},
		{"claimed as late while it is held", nil, func(w *world) {
			w.hold("a", 1000, 9000, history.ResumeNow)
			at(letter(w.fire(limited(w, false)), "late: 2s after its due time, at most 1s"), 9050)
		}, "held"},
		{"late and held, and a dead letter for that", nil, func(w *world) {
			w.hold("a", 1000, 9000, history.ResumeDead)
			at(letter(w.fire(limited(w, true)), "held"), 9050)
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

// A timer due before a timer_cancel of its key may have been cancelled with it, unless it was certainly claimed.
func TestVerdictsOnTimersDueBeforeACancellation(t *testing.T) {
	const key = "a:b:c:1"
	for _, c := range []struct {
		name   string
		faults []history.Fault
		stored int64 // when the first of two timers that is due at 5000 was, 0 if never
		second int64 // when the message of another id was
		want   string
	}{
		{"fired before", nil, 5003, 0, ""},
		{"fired before, and twice", nil, 5003, 7000, "duplicate"},
		{"fired before, and twice, after it", []history.Fault{deaf(history.Delays, 4000, 9000)}, 5003, 9003,
			"duplicate"},
		{"nothing came", []history.Fault{deaf(history.Delays, 4000, 9000)}, 0, 0, ""},
		{"nothing came, though nothing kept it", nil, 0, 0, "lost"},
		{"it was firing", []history.Fault{deaf(history.Delays, 4000, 9000)}, 8600, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(c.faults...)
			op := w.set(0, history.Timer, key, "p", 5000)
			w.set(6000, history.Timer, key, "q", 9000)
			w.do(8500, history.Op{Kind: history.Cancel, Key: key, Reply: "cancelled"})
			if c.stored != 0 {
				at(w.fire(op), c.stored-2)
			}
			if c.second != 0 {
				at(w.emit(key, op.Due+2, 1, "p"), c.second)
			}
			if got := w.verdicts(); got != c.want {
				t.Errorf("judged %q, want %q", got, c.want)
				tell(t, w)
			}
		})
	}
}
