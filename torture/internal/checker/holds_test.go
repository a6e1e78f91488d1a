package checker_test

import (
	"fmt"
	"testing"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/torture/internal/checker"
	"github.com/timerd-io/timerd/torture/internal/history"
)

// Each command about a hold takes so long in these tests, in ms, and the hold begins and ends at half of it.
const took, middle = 100, 50

// hold holds a namespace from one time to another, and returns by how much a shift moves.
func (w *world) hold(namespace string, from, to int64, how history.HoldKind) int64 {
	begun := w.command(history.HoldOp{Namespace: namespace, Kind: history.Hold, Since: began + from + middle}, from)
	w.command(history.HoldOp{Namespace: namespace, Kind: how, Rate: 10}, to)
	w.Faults = append(w.Faults, history.Fault{
		Kind: "held", Effect: history.Delays, Hold: true, Apps: []string{history.App(namespace)},
		From: begun.Invoked, Healed: began + to + took, Ready: began + to + took,
	})
	return to - from
}

// nested holds a namespace and a wider one, from 1 s and 2 s on, and resumes them at 6 s and 9 s. It returns by how
// much a shift of the narrower one moves.
func (w *world) nested(narrower, wider history.HoldKind) int64 {
	w.command(history.HoldOp{Namespace: "held:b", Kind: history.Hold, Since: began + 1000 + middle}, 1000)
	w.hold("held", 2000, 9000, wider)
	w.command(history.HoldOp{Namespace: "held:b", Kind: narrower, Rate: 10}, 6000)
	return 5000
}

func (w *world) command(op history.HoldOp, at int64) history.HoldOp {
	if op.Outcome == "" {
		op.Outcome = history.OK
	}
	op.Invoked, op.Ended = began+at, began+at+took
	w.Holds = append(w.Holds, op)
	return op
}

// at has a message come at a time from the beginning on.
func at(m *history.Message, at int64) *history.Message {
	m.Time, m.Stored = began+at, began+at+2
	return m
}

// letter makes a dead letter of a message.
func letter(m *history.Message, reason string) *history.Message {
	m.Stream, m.Reason = history.DeadStream, reason
	return m
}

// Timers under holds and resumes of each kind get their verdicts.
func TestVerdictsOnHolds(t *testing.T) {
	const key = "held:b:c:1"
	unknown := func(w *world, kind history.HoldKind, from, to int64) {
		w.command(history.HoldOp{Namespace: "held", Kind: history.Hold}, from)
		w.command(history.HoldOp{Namespace: "held", Kind: kind, Outcome: history.Unknown}, to)
		w.command(history.HoldOp{Namespace: "held", Kind: kind}, to+1000)
	}
	// missing has a timer fire and its retry too, while the next timer of the key runs out and fires without its
	// payload.
	missing := func(w *world, due int64) {
		m := w.fire(w.set(5200, history.Timer, key, "p", 400))
		w.set(5620, history.Set, key, "q", 5380)
		w.do(5640, retryOf(m, 300))
		w.emit(key, began+5940, 2, "p")
		w.emit(key, began+due, 1, "").Status = event.StatusMissing
	}
	for _, c := range []struct {
		name   string
		faults []history.Fault
		play   func(w *world)
		want   string
	}{
		{"held, and fires after that", nil, func(w *world) {
			w.hold("held", 1000, 9000, history.ResumeNow)
			at(w.fire(w.set(0, history.Timer, key, "p", 5000)), 9050)
		}, ""},
		{"replaced before a resume that ends before the reply", nil, func(w *world) {
			w.hold("held", 1000, 5005, history.ResumeNow)
			w.set(0, history.Timer, key, "p", 5000)
			w.fire(w.set(4990, history.Timer, key, "q", 1000))
			w.Ops[1].Ended = began + 5060
		}, ""},
		{"held by a part of its name", nil, func(w *world) {
			w.hold("held:b", 1000, 9000, history.ResumeNow)
			w.fire(w.set(0, history.Timer, key, "p", 5000))
		}, "held"},
		{"another namespace is held", nil, func(w *world) {
			w.hold("held:bb", 1000, 9000, history.ResumeNow)
			w.fire(w.set(0, history.Timer, key, "p", 5000))
		}, ""},
		{"claimed while it is held", nil, func(w *world) {
			w.hold("held", 1000, 9000, history.ResumeNow)
			at(w.fire(w.set(0, history.Timer, key, "p", 5000)), 8999)
		}, "held"},
		{"due before all have confirmed, and claimed before that", nil, func(w *world) {
			w.hold("held", 4950, 9000, history.ResumeNow)
			at(w.fire(w.set(0, history.Timer, key, "p", 5000)), 6900)
		}, ""},
		{"due before all have confirmed, and claimed after that", nil, func(w *world) {
			w.hold("held", 4950, 9000, history.ResumeNow)
			at(w.fire(w.set(0, history.Timer, key, "p", 5000)), 7500)
		}, "held"},
		{"the same, for the second time", nil, func(w *world) {
			w.hold("held", 4950, 9000, history.ResumeNow)
			at(w.fire(w.set(0, history.Timer, key, "p", 5000)), 7500).Trigger = "reclaim"
		}, ""},
		{"the same, given back perhaps", []history.Fault{deaf(history.Delays, 4000, 6000)}, func(w *world) {
			w.hold("held", 4950, 9000, history.ResumeNow)
			at(w.fire(w.set(0, history.Timer, key, "p", 5000)), 7500)
		}, ""},
		{"not confirmed", nil, func(w *world) {
			w.command(history.HoldOp{Namespace: "held", Kind: history.Hold, Outcome: history.Unknown}, 1000)
			w.command(history.HoldOp{Namespace: "held", Kind: history.ResumeNow}, 9000)
			w.fire(w.set(0, history.Timer, key, "p", 5000))
		}, ""},
		{"a failover may lose a hold", []history.Fault{deaf(history.Failover, 500, 1200)}, func(w *world) {
			w.hold("held", 1000, 9000, history.ResumeNow)
			w.fire(w.set(0, history.Timer, key, "p", 5000))
		}, ""},
		{"a failover loses no hold that a replica has", []history.Fault{deaf(history.Failover, 3500, 4000)},
			func(w *world) {
				w.hold("held", 1000, 9000, history.ResumeNow)
				w.fire(w.set(0, history.Timer, key, "p", 5000))
			}, "held"},
		{"a failover may lose a hold that no replica has", []history.Fault{deaf(history.Failover, 3500, 4000)},
			func(w *world) {
				w.hold("held", 1000, 9000, history.ResumeNow)
				w.Holds[0].Unsafe = true
				w.fire(w.set(0, history.Timer, key, "p", 5000))
			}, ""},
		{"moved while a shift may be under way, and fires when it was moved to", nil, func(w *world) {
			unknown(w, history.ResumeShift, 1000, 5000)
			w.set(0, history.Timer, key, "p", 6000)
			moved := w.do(5500, history.Op{Kind: history.Expire, Key: key, TTL: 200, Reply: "1"})
			w.emit(key, moved.Due, 1, "p")
		}, ""},
		{"the same, and fires before that", nil, func(w *world) {
			unknown(w, history.ResumeShift, 1000, 5000)
			w.set(0, history.Timer, key, "p", 6000)
			moved := w.do(5500, history.Op{Kind: history.Expire, Key: key, TTL: 200, Reply: "1"})
			at(w.emit(key, moved.Due, 1, "p"), 5600)
		}, "early"},
		{"held, and lost", nil, func(w *world) {
			w.hold("held", 1000, 9000, history.ResumeNow)
			w.set(0, history.Timer, key, "p", 5000)
		}, "lost"},
		{"held, and fires twice", nil, func(w *world) {
			w.hold("held", 1000, 9000, history.ResumeNow)
			op := w.set(0, history.Timer, key, "p", 5000)
			at(w.fire(op), 9050)
			at(w.emit(key, op.Due+8000, 1, "p"), 14_000)
		}, "duplicate"},
		{"held twice, and fires between the two", nil, func(w *world) {
			w.hold("held", 1000, 9000, history.ResumeNow)
			w.hold("held:b", 8000, 12_000, history.ResumeNow)
			at(w.fire(w.set(0, history.Timer, key, "p", 5000)), 9500)
		}, "held"},
		{"held for a time", nil, func(w *world) {
			w.command(history.HoldOp{Namespace: "held", Kind: history.Hold, For: 6000}, 1000)
			w.command(history.HoldOp{Namespace: "held", Kind: history.Over}, 7500)
			at(w.fire(w.set(0, history.Timer, key, "p", 5000)), 7010)
		}, ""},
		{"held for a time, and fires within it", nil, func(w *world) {
			w.command(history.HoldOp{Namespace: "held", Kind: history.Hold, For: 6000}, 1000)
			w.command(history.HoldOp{Namespace: "held", Kind: history.Over}, 7500)
			at(w.fire(w.set(0, history.Timer, key, "p", 5000)), 6990)
		}, "held"},
		{"the resume of a narrower hold decides: dead", nil, func(w *world) {
			w.nested(history.ResumeDead, history.ResumeShift)
			letter(at(w.fire(w.set(0, history.Timer, key, "p", 5000)), 9050), "held")
		}, ""},
		{"the same, and fires", nil, func(w *world) {
			w.nested(history.ResumeDead, history.ResumeNow)
			at(w.fire(w.set(0, history.Timer, key, "p", 5000)), 9050)
		}, "held"},
		{"the resume of a narrower hold decides: at once", nil, func(w *world) {
			w.nested(history.ResumeNow, history.ResumeDead)
			at(w.fire(w.set(0, history.Timer, key, "p", 5000)), 9050)
		}, ""},
		{"the resume of a narrower hold decides: shifted", nil, func(w *world) {
			by := w.nested(history.ResumeShift, history.ResumeDead)
			at(w.emit(key, w.set(0, history.Timer, key, "p", 5000).Due+by, 1, "p"), 10_000)
		}, ""},
		{"the same, by the length of the wider hold", nil, func(w *world) {
			by := w.nested(history.ResumeShift, history.ResumeShift)
			at(w.emit(key, w.set(0, history.Timer, key, "p", 5000).Due+by+2000, 1, "p"), 12_000)
		}, "unexpected, lost"},
		{"due after the narrower hold ended", nil, func(w *world) {
			w.nested(history.ResumeShift, history.ResumeDead)
			letter(at(w.fire(w.set(0, history.Timer, key, "p", 8000)), 9050), "held")
		}, ""},
		{"released by the narrower hold alone", nil, func(w *world) {
			w.nested(history.ResumeNow, history.ResumeNow)
			at(w.fire(w.set(0, history.Timer, key, "p", 5000)), 7500)
		}, "held"},
		{"a failover may lose a hold that no replica has before it is in a list",
			[]history.Fault{deaf(history.Failover, 500, 1200)}, func(w *world) {
				w.hold("held", 1000, 9000, history.ResumeNow)
				w.Holds[0].Unlisted, w.Holds[0].Unsafe = true, true
			}, ""},
		{"a hold that is not in the list", nil, func(w *world) {
			w.hold("held", 1000, 9000, history.ResumeNow)
			w.Holds[0].Unlisted = true
		}, "wrong reply"},

		{"shifted", nil, func(w *world) {
			by := w.hold("held", 1000, 9000, history.ResumeShift)
			w.emit(key, w.set(0, history.Timer, key, "p", 5000).Due+by, 1, "p")
			w.emit(key+"1", w.set(0, history.Set, key+"1", "q", 6000).Due+by, 1, "q")
		}, ""},
		{"shifted, not all by the same length", nil, func(w *world) {
			by := w.hold("held", 1000, 9000, history.ResumeShift)
			for i := range int64(3) {
				w.emit(fmt.Sprint(key, i), w.set(0, history.Timer, fmt.Sprint(key, i), "p", 5000).Due+by+i/2, 1, "p")
			}
		}, "held"},
		{"shifted by another length", nil, func(w *world) {
			by := w.hold("held", 1000, 9000, history.ResumeShift)
			w.emit(key, w.set(0, history.Timer, key, "p", 5000).Due+by+200, 1, "p")
		}, "unexpected, lost"},
		{"not shifted", nil, func(w *world) {
			w.hold("held", 1000, 9000, history.ResumeShift)
			at(w.fire(w.set(0, history.Timer, key, "p", 5000)), 9050)
		}, "unexpected, lost"},
		{"shifted, and fires at the old time too", nil, func(w *world) {
			by := w.hold("held", 1000, 9000, history.ResumeShift)
			op := w.set(0, history.Timer, key, "p", 5000)
			w.emit(key, op.Due+by, 1, "p")
			at(w.fire(op), 9050)
		}, "duplicate"},
		{"shifted, though it was due after the end", nil, func(w *world) {
			by := w.hold("held", 1000, 9000, history.ResumeShift)
			w.emit(key, w.set(0, history.Timer, key, "p", 12_000).Due+by, 1, "p")
		}, "unexpected, lost"},
		{"shifted and cancelled", nil, func(w *world) {
			by := w.hold("held", 1000, 9000, history.ResumeShift)
			op := w.set(0, history.Timer, key, "p", 5000)
			w.do(10_000, history.Op{Kind: history.Cancel, Key: key, Reply: "cancelled"})
			w.emit(key, op.Due+by, 1, "p")
		}, "resurrected"},
		{"shifted and deleted", nil, func(w *world) {
			by := w.hold("held", 1000, 9000, history.ResumeShift)
			op := w.set(0, history.Timer, key, "p", 5000)
			w.do(9500, history.Op{Kind: history.Del, Key: key, Reply: "1"})
			w.emit(key, op.Due+by, 1, "p")
		}, "resurrected"},
		{"shifted, and its key is not there", nil, func(w *world) {
			by := w.hold("held", 1000, 9000, history.ResumeShift)
			w.emit(key, w.set(0, history.Timer, key, "p", 5000).Due+by, 1, "p")
			w.do(10_000, history.Op{Kind: history.Expire, Key: key, TTL: 9000, Reply: "0"})
		}, "wrong reply"},
		{"shifted and extended", nil, func(w *world) {
			w.hold("held", 1000, 9000, history.ResumeShift)
			w.set(0, history.Timer, key, "p", 5000)
			op := w.do(10_000, history.Op{Kind: history.Expire, Key: key, TTL: 9000, Reply: "1"})
			w.emit(key, op.Due, 1, "p")
		}, ""},
		{"extended while others are being shifted", nil, func(w *world) {
			w.hold("held", 1000, 9000, history.ResumeShift)
			w.Holds[1].Ended = began + 10_500
			w.set(0, history.Timer, key, "p", 9800)
			op := w.do(9300, history.Op{Kind: history.Expire, Key: key, TTL: 3000, Reply: "1"})
			w.emit(key, op.Due, 1, "p")
		}, ""},
		{"shifted beside a newer timer", nil, func(w *world) {
			by := w.hold("held", 1000, 9000, history.ResumeShift)
			op := w.set(0, history.Timer, key, "p", 5000)
			w.fire(w.set(6000, history.Timer, key, "q", 20_000))
			w.emit(key, op.Due+by, 1, "p")
		}, ""},
		{"shifted beside a newer timer, and lost", nil, func(w *world) {
			w.hold("held", 1000, 9000, history.ResumeShift)
			w.set(0, history.Timer, key, "p", 5000)
			w.fire(w.set(6000, history.Timer, key, "q", 20_000))
		}, "lost"},
		{"shifted perhaps, while another hold lasts", nil, func(w *world) {
			w.hold("held", 1000, 9000, history.ResumeShift)
			w.hold("held:b", 4000, 12_000, history.ResumeNow)
			at(w.fire(w.set(0, history.Timer, key, "p", 5000)), 12_060)
		}, ""},
		{"shifted by a resume that was interrupted", nil, func(w *world) {
			unknown(w, history.ResumeShift, 1000, 9000)
			w.emit(key, w.set(0, history.Timer, key, "p", 5000).Due+8500, 1, "p")
		}, ""},
		{"shifted by a resume that was interrupted, and fires before that", nil, func(w *world) {
			unknown(w, history.ResumeShift, 1000, 9000)
			at(w.fire(w.set(0, history.Timer, key, "p", 5000)), 8500)
		}, "held"},

		{"a dead letter", nil, func(w *world) {
			w.hold("held", 1000, 9000, history.ResumeDead)
			at(letter(w.fire(w.set(0, history.Timer, key, "p", 5000)), "held"), 9050)
		}, ""},
		{"a dead letter with another payload", nil, func(w *world) {
			w.hold("held", 1000, 9000, history.ResumeDead)
			at(letter(w.fire(w.set(0, history.Timer, key, "p", 5000)), "held"), 9050).Payload = "q"
		}, "wrong payload"},
		{"a dead letter and lost", nil, func(w *world) {
			w.hold("held", 1000, 9000, history.ResumeDead)
			w.set(0, history.Timer, key, "p", 5000)
		}, "lost"},
		{"fires instead of a dead letter", nil, func(w *world) {
			w.hold("held", 1000, 9000, history.ResumeDead)
			at(w.fire(w.set(0, history.Timer, key, "p", 5000)), 9050)
		}, "held"},
		{"is held again instead of a dead letter, which a fault had kept",
			[]history.Fault{of(history.DyingApp, deaf(history.Delays, 8000, 15_000))}, func(w *world) {
				w.hold("held", 1000, 9000, history.ResumeDead)
				w.hold("held", 12_000, 20_000, history.ResumeNow)
				at(w.fire(w.set(0, history.Timer, key, "p", 5000)), 20_050)
			}, ""},
		{"is held again instead of a dead letter", nil, func(w *world) {
			w.hold("held", 1000, 9000, history.ResumeDead)
			w.hold("held", 12_000, 20_000, history.ResumeNow)
			at(w.fire(w.set(0, history.Timer, key, "p", 5000)), 20_050)
		}, "held"},
		{"fires beside a dead letter", nil, func(w *world) {
			w.hold("held", 4950, 9000, history.ResumeDead)
			op := w.set(0, history.Timer, key, "p", 5000)
			w.fire(op)
			at(letter(w.fire(op), "held"), 9050)
		}, "duplicate"},
		{"fires beside a dead letter that says so", nil, func(w *world) {
			w.hold("held", 4950, 9000, history.ResumeDead)
			op := w.set(0, history.Timer, key, "p", 5000)
			w.fire(op)
			at(letter(w.fire(op), "held; may have been published"), 9050)
		}, ""},
		{"a dead letter of another resume", nil, func(w *world) {
			w.hold("held", 1000, 9000, history.ResumeNow)
			at(letter(w.fire(w.set(0, history.Timer, key, "p", 5000)), "held"), 9050)
		}, "held"},
		{"a dead letter before the resume", nil, func(w *world) {
			w.hold("held", 4950, 9000, history.ResumeDead)
			at(letter(w.fire(w.set(0, history.Timer, key, "p", 5000)), "held"), 8050)
		}, "held"},
		{"a dead letter of a timer due later", nil, func(w *world) {
			w.hold("held", 1000, 9000, history.ResumeDead)
			letter(w.fire(w.set(0, history.Timer, key, "p", 12_000)), "held")
		}, "held"},

		{"cancelled while it is held", nil, func(w *world) {
			w.hold("held", 1000, 9000, history.ResumeNow)
			w.set(0, history.Timer, key, "p", 5000)
			w.do(7000, history.Op{Kind: history.Cancel, Key: key, Reply: "cancelled"})
		}, ""},
		{"cancelled while it is held, and fires", nil, func(w *world) {
			w.hold("held", 1000, 9000, history.ResumeNow)
			op := w.set(0, history.Timer, key, "p", 5000)
			w.do(7000, history.Op{Kind: history.Cancel, Key: key, Reply: "cancelled"})
			at(w.fire(op), 9050)
		}, "resurrected"},
		{"too late to cancel, though it is held", nil, func(w *world) {
			w.hold("held", 1000, 9000, history.ResumeNow)
			op := w.set(0, history.Timer, key, "p", 5000)
			w.do(7000, history.Op{Kind: history.Cancel, Key: key, Reply: "fired"})
			at(w.fire(op), 9050)
		}, "wrong reply"},
		{"too late to cancel, since it was claimed before", nil, func(w *world) {
			w.hold("held", 4950, 9000, history.ResumeNow)
			op := w.set(0, history.Timer, key, "p", 5000)
			w.do(7000, history.Op{Kind: history.Cancel, Key: key, Reply: "fired"})
			w.fire(op)
		}, ""},
		{"set again while it is held: both", nil, func(w *world) {
			w.hold("held", 1000, 9000, history.ResumeNow)
			at(w.fire(w.set(0, history.Timer, key, "p", 5000)), 9050)
			at(w.fire(w.set(6000, history.Timer, key, "q", 2000)), 9050)
		}, ""},
		{"set again while it is held: the first is overwritten", nil, func(w *world) {
			w.hold("held", 1000, 9000, history.ResumeNow)
			w.set(0, history.Timer, key, "p", 5000)
			at(w.fire(w.set(6000, history.Timer, key, "q", 2000)), 9050)
		}, "lost"},
		{"a retry is held", nil, func(w *world) {
			m := w.fire(w.set(0, history.Timer, key, "p", 500))
			w.hold("held", 1000, 9000, history.ResumeNow)
			w.do(2000, retryOf(m, 1000))
			at(w.emit(key, began+3001, 2, "p"), 9050)
		}, ""},
		{"a retry is claimed while it is held", nil, func(w *world) {
			m := w.fire(w.set(0, history.Timer, key, "p", 500))
			w.hold("held", 1000, 9000, history.ResumeNow)
			w.do(2000, retryOf(m, 1000))
			w.emit(key, began+3001, 2, "p")
		}, "held"},

		{"a retry that fired, perhaps shifted to when the next timer of the key runs out unheard",
			[]history.Fault{deaf(history.Deafens, 5500, 13_000)}, func(w *world) {
				unknown(w, history.ResumeShift, 1000, 5000)
				missing(w, 11_020)
			}, ""},
		{"the same, and the next timer was heard", nil, func(w *world) {
			unknown(w, history.ResumeShift, 1000, 5000)
			missing(w, 11_000)
		}, "wrong payload"},

		{"at a rate", nil, func(w *world) { spaced(w, 100, 9100) }, ""},
		{"ten percent too fast", nil, func(w *world) { spaced(w, 91, 9100) }, ""},
		{"two at a time at first", nil, func(w *world) { spaced(w, 100, 8950) }, ""},
		{"too fast", nil, func(w *world) { spaced(w, 80, 9100) }, "held"},
		{"at a rate, until others are released at once", nil, func(w *world) {
			spaced(w, 100, 9100)
			w.hold("held", 9500, 9900, history.ResumeNow)
			for i := range w.Messages[4:] {
				at(&w.Messages[4+i], 10_000)
			}
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

// tell logs all that is wrong.
func tell(t *testing.T, w *world) {
	t.Helper()
	for _, v := range checker.Judge(&w.History).Violations {
		t.Logf("%s: %s: %s", v.Class, v.Key, v.Text)
	}
}

// spaced has 20 timers that were held released at 10 a second, the first one at a time, and then one after each
// interval.
func spaced(w *world, interval, first int64) {
	w.hold("held", 1000, 9000, history.ResumeRate)
	for i := range int64(20) {
		op := w.set(0, history.Timer, fmt.Sprint("held:b:c:", i), "p", 5000)
		at(w.fire(op), max(first+i*interval, 9050))
	}
}
