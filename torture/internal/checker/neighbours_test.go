package checker_test

import (
	"fmt"
	"testing"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/torture/internal/history"
)

// of makes a fault one that concerns one app only.
func of(app string, f history.Fault) history.Fault {
	f.Apps = []string{app}
	return f
}

// beside makes a fault one that concerns the slot of a key only.
func beside(key string, f history.Fault) history.Fault {
	slot := keys.Slot(key)
	f.Slots = []history.Slots{{From: slot, To: slot}}
	return f
}

// late has the timer of an operation fire late.
func (w *world) late(op history.Op, by int64) *history.Message {
	return delay(w.fire(op), by)
}

// delay has a message come later.
func delay(m *history.Message, by int64) *history.Message {
	m.Time, m.Stored = m.Time+by, m.Stored+by
	return m
}

// dead has a retry request become a dead letter.
func (w *world) dead(op history.Op, id, reason string) *history.Message {
	m := w.emit(op.Key, op.Due, op.Attempt, op.Payload)
	m.Stream, m.ID, m.Reason = history.DeadStream, id, reason
	return m
}

// The excuses of each fault of one app, or of keys only, and their limits.
func TestVerdictsOnNeighbours(t *testing.T) {
	const narrow, denied, giant, other = "narrow:b:c:1", "denied:b:c:1", "giant:b:c:1", "a:b:c:1"
	rights := []history.Fault{of(history.NarrowApp, deaf(history.Deafens, 1000, 9000))}
	subject := []history.Fault{of(history.DeniedApp, deaf(history.Delays, 1000, 9000))}
	full := []history.Fault{of(history.DyingApp, deaf(history.Delays, 1000, 9000))}
	gone := []history.Fault{deaf(history.KeysGo, 3000, 9000)}
	spent := func(w *world) history.Op {
		op := history.Op{Kind: history.Retry, Key: "dying:b:c:1", Payload: "p", Attempt: 2, Max: 2, Due: began + 1000}
		return w.do(2000, op)
	}
	oversize := func(w *world) history.Op {
		op := history.Op{Kind: history.Retry, Key: giant, Payload: "p", Attempt: 1, Max: 5, Due: began + 1000,
			Refused: true}
		return w.do(2000, op)
	}
	large := func(w *world) history.Op {
		return w.do(0, history.Op{Kind: history.Hash, Key: giant, Fields: 1001, Status: "toolarge", Attempt: 1,
			TTL: 5000})
	}
	for _, c := range []struct {
		name   string
		faults []history.Fault
		play   func(w *world)
		want   string
	}{
		{"timer_set beyond timerd's rights fires late", rights, func(w *world) {
			w.late(w.set(2000, history.Timer, narrow, "p", 3000), 5000)
		}, ""},
		{"the same is lost", rights, func(w *world) {
			w.set(2000, history.Timer, narrow, "p", 3000)
		}, "lost"},
		{"the same fires twice", rights, func(w *world) {
			op := w.set(2000, history.Timer, narrow, "p", 3000)
			w.late(op, 1000)
			w.late(op, 5000)
		}, "duplicate"},
		{"a plain timer beyond timerd's rights fires without its payload", rights, func(w *world) {
			op := w.set(2000, history.Set, narrow, "p", 3000)
			m := w.emit(narrow, op.Due+40, 1, "")
			m.Status, m.Trigger = "missing", "expired"
		}, ""},
		{"the same without any reason", nil, func(w *world) {
			op := w.set(2000, history.Set, narrow, "p", 3000)
			m := w.emit(narrow, op.Due+40, 1, "")
			m.Status, m.Trigger = "missing", "expired"
		}, "unexpected, lost"},
		{"it outlives that, and no audit finds it", rights, func(w *world) {
			op := w.set(2000, history.Set, narrow, "p", 20_000)
			m := w.emit(narrow, op.Due+90, 1, "")
			m.Status, m.Trigger = "missing", "expired"
		}, ""},
		{"it does not fire at all", rights, func(w *world) {
			w.set(2000, history.Set, narrow, "p", 3000)
		}, "lost"},
		{"it runs out when nobody hears that", append(rights, deaf(history.Deafens, 4000, 6000)), func(w *world) {
			w.set(2000, history.Set, narrow, "p", 3000)
		}, ""},
		{"it is cancelled", rights, func(w *world) {
			w.set(2000, history.Set, narrow, "p", 3000)
			w.do(5010, history.Op{Kind: history.Cancel, Key: narrow, Reply: "cancelled"})
		}, ""},
		{"it is deleted", rights, func(w *world) {
			w.set(2000, history.Set, narrow, "p", 5000)
			w.do(4000, history.Op{Kind: history.Del, Key: narrow, Reply: "1"})
		}, ""},
		{"a plain timer of another app meanwhile", rights, func(w *world) {
			w.set(2000, history.Set, other, "p", 3000)
		}, "lost"},
		{"a plain timer that was adopted before", rights, func(w *world) {
			w.set(-2000, history.Set, narrow, "p", 5000)
		}, "lost"},
		{"a plain change beyond timerd's rights", rights, func(w *world) {
			op := w.set(0, history.Timer, narrow, "p", 8000)
			w.do(4000, history.Op{Kind: history.Del, Key: narrow, Reply: "1"})
			w.fire(op)
		}, ""},
		{"a plain change of another app meanwhile", rights, func(w *world) {
			op := w.set(0, history.Timer, other, "p", 8000)
			w.do(4000, history.Op{Kind: history.Del, Key: other, Reply: "1"})
			w.fire(op)
		}, "resurrected"},

		{"a denied subject fires late", subject, func(w *world) {
			w.late(w.set(0, history.Set, denied, "p", 5000), 6000)
		}, ""},
		{"a denied subject loses nothing", subject, func(w *world) {
			w.set(0, history.Set, denied, "p", 5000)
		}, "lost"},
		{"a denied subject is heard", subject, func(w *world) {
			op := w.set(0, history.Set, denied, "p", 8000)
			w.do(4000, history.Op{Kind: history.Del, Key: denied, Reply: "1"})
			w.late(op, 3000)
		}, "resurrected"},

		{"a dead letter waits for room", full, func(w *world) {
			op := spent(w)
			w.dead(op, fmt.Sprintf("%s@%d.%d", op.Key, op.Due, 2), "attempts used up").Stored += 9000
		}, ""},
		{"a dead letter is lost", full, func(w *world) { spent(w) }, "lost"},

		{"a key that went away fires", gone, func(w *world) {
			w.fire(w.set(0, history.Set, other, "p", 8000))
		}, ""},
		{"a key that went away is lost", gone, func(w *world) {
			w.set(0, history.Set, other, "p", 8000)
		}, "lost"},
		{"a plain key may go away before it is heard of", gone, func(w *world) {
			w.set(4000, history.Set, other, "p", 20_000)
		}, ""},
		{"timer_set may not", gone, func(w *world) {
			w.set(4000, history.Timer, other, "p", 20_000)
		}, "lost"},
		{"what finds no key changes nothing", gone, func(w *world) {
			op := w.set(0, history.Timer, other, "p", 20_000)
			w.do(5000, history.Op{Kind: history.Expire, Key: other, Reply: "0"})
			w.do(6000, history.Op{Kind: history.Del, Key: other, Reply: "0"})
			w.fire(op)
		}, ""},
		{"what finds no key cancels nothing", gone, func(w *world) {
			w.set(0, history.Timer, other, "p", 20_000)
			w.do(6000, history.Op{Kind: history.Del, Key: other, Reply: "0"})
		}, "lost"},
		{"what finds a key ends it", gone, func(w *world) {
			op := w.set(0, history.Timer, other, "p", 30_000)
			w.do(15_000, history.Op{Kind: history.Del, Key: other, Reply: "1"})
			w.fire(op)
		}, "resurrected"},
		{"nothing went away", nil, func(w *world) {
			op := w.set(0, history.Timer, other, "p", 20_000)
			w.do(5000, history.Op{Kind: history.Expire, Key: other, Reply: "0"})
			w.fire(op)
		}, "wrong reply"},
		{"timer_cancel of what went away unheard", gone, func(w *world) {
			w.set(4000, history.Set, other, "p", 20_000)
			w.do(5000, history.Op{Kind: history.Cancel, Key: other, Reply: "unknown"})
		}, ""},
		{"timer_cancel of what timerd knows", gone, func(w *world) {
			w.set(4000, history.Timer, other, "p", 20_000)
			w.do(5000, history.Op{Kind: history.Cancel, Key: other, Reply: "unknown"})
		}, "wrong reply"},

		{"an event that is too large says so", nil, func(w *world) {
			w.fire(large(w)).Status = "toolarge"
		}, ""},
		{"a timer that is too large fires all the same", nil, func(w *world) { large(w) }, "lost"},
		{"a timer that is too large does not fire with a payload", nil, func(w *world) {
			op := large(w)
			op.Payload = "{}"
			w.fire(op)
		}, "wrong payload"},
		{"a retry that is too large is a dead letter", nil, func(w *world) {
			w.dead(oversize(w), "of the request", "refused: too large")
		}, ""},
		{"a retry that is too large is not dropped", nil, func(w *world) { oversize(w) }, "lost"},
		{"a retry that is too large is not set", nil, func(w *world) {
			op := oversize(w)
			w.dead(op, "of the request", "refused: too large")
			w.emit(giant, op.Ended+300, 2, "p")
		}, "duplicate"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(c.faults...)
			c.play(w)
			if got := w.verdicts(); got != c.want {
				t.Errorf("judged %q, want %q", got, c.want)
			}
		})
	}
}

// Who is innocent, and how late he may be.
func TestInnocents(t *testing.T) {
	guilty := of("bad", deaf(history.Delays, 1000, 60_000))
	hour := int64(3_600_000)
	for _, c := range []struct {
		name   string
		faults []history.Fault
		play   func(w *world)
		want   string
	}{
		{"late beside a fault of others", []history.Fault{guilty}, func(w *world) {
			w.late(w.set(2000, history.Timer, "a:b:c:1", "p", 5000), 2500)
		}, "innocent"},
		{"a little late", []history.Fault{guilty}, func(w *world) {
			w.late(w.set(2000, history.Timer, "a:b:c:1", "p", 5000), 1500)
		}, ""},
		{"the guilty one", []history.Fault{guilty}, func(w *world) {
			w.late(w.set(2000, history.Timer, "bad:b:c:1", "p", 5000), 2500)
		}, ""},
		{"late without a fault", nil, func(w *world) {
			w.late(w.set(2000, history.Timer, "a:b:c:1", "p", 5000), 2500)
		}, ""},
		{"a fault of all at the same time", []history.Fault{guilty, deaf(history.Delays, 6000, 8000)}, func(w *world) {
			w.late(w.set(2000, history.Timer, "a:b:c:1", "p", 5000), 2500)
		}, ""},
		{"a fault of all in its life", []history.Fault{guilty, deaf(history.Delays, 2500, 2600)}, func(w *world) {
			w.late(w.set(2000, history.Timer, "a:b:c:1", "p", 9000), 2500)
		}, ""},
		{"a fault of all before its life", []history.Fault{guilty, deaf(history.Delays, 100, 200)}, func(w *world) {
			w.late(w.set(9000, history.Timer, "a:b:c:1", "p", 5000), 2500)
		}, "innocent"},
		{"behind a crowd that fired", []history.Fault{guilty}, func(w *world) {
			w.late(w.set(2000, history.Timer, "a:b:c:1", "p", 5000), 2500)
			for i := range 1000 {
				w.late(w.set(2000, history.Timer, fmt.Sprintf("bad:b:c:%d", i), "p", 4999), int64(2*i))
			}
		}, ""},
		{"while the machine stalled", []history.Fault{guilty}, func(w *world) {
			w.late(w.set(2000, history.Timer, "a:b:c:1", "p", 5000), 2500)
			w.Stalls = []history.Stall{{From: began + 7100, To: began + 7900}, {From: began + 9000, To: began + 12_000}}
		}, ""},
		{"while the machine stalled for a little", []history.Fault{guilty}, func(w *world) {
			w.late(w.set(2000, history.Timer, "a:b:c:1", "p", 5000), 2500)
			w.Stalls = []history.Stall{{From: began + 1000, To: began + 7100}, {From: began + 9400, To: began + 12_000}}
		}, "innocent"},
		{"many somewhat late", []history.Fault{guilty}, func(w *world) { crowd(w, 600, 200) }, "innocent"},
		{"a few somewhat late", []history.Fault{guilty}, func(w *world) { crowd(w, 2, 200) }, ""},
		{"many somewhat late, as they are without a fault", []history.Fault{guilty}, func(w *world) {
			crowd(w, 600, 200)
			for i := range 600 {
				w.late(w.set(hour/10+int64(i)*100, history.Timer, fmt.Sprintf("a:b:calm:%d", i), "p", 50), 200)
			}
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(c.faults...)
			w.End.At = began + hour
			c.play(w)
			if got := w.verdicts(); got != c.want {
				t.Errorf("judged %q, want %q", got, c.want)
			}
		})
	}
}

// A fault of one master of a cluster concerns the timers of its slots, and no others.
func TestVerdictsBesideASilentMaster(t *testing.T) {
	const its, other = "a:b:silent:1", "a:b:c:1"
	silent := []history.Fault{beside(its, deaf(history.Deafens, 1000, 60_000))}
	retried := func(w *world, key string) *history.Message {
		op := w.do(2000, history.Op{Kind: history.Retry, Key: key, Payload: "p", Attempt: 1, Max: 5, TTL: 3000,
			Due: began + 1000})
		return w.emit(key, op.Invoked+op.TTL, 2, "p")
	}
	for _, c := range []struct {
		name   string
		faults []history.Fault
		play   func(w *world)
		want   string
	}{
		{"its timer is late", silent, func(w *world) {
			w.late(w.set(2000, history.Timer, its, "p", 5000), 2500)
		}, ""},
		{"another one's is late", silent, func(w *world) {
			w.late(w.set(2000, history.Timer, other, "p", 5000), 2500)
		}, "innocent"},
		{"another one's is late, without its being silent", nil, func(w *world) {
			w.late(w.set(2000, history.Timer, other, "p", 5000), 2500)
		}, ""},
		{"another one's is late, as all are", append(silent, deaf(history.Delays, 6000, 8000)), func(w *world) {
			w.late(w.set(2000, history.Timer, other, "p", 5000), 2500)
		}, ""},
		{"its retry is late", silent, func(w *world) { delay(retried(w, its), 2500) }, ""},
		{"another one's retry is late", silent, func(w *world) { delay(retried(w, other), 2500) }, "innocent"},
		{"its slots are in several places", []history.Fault{{
			Effect: history.Deafens, From: began + 1000, Ready: began + 60_000,
			Slots: []history.Slots{{From: 0, To: 0}, {From: keys.Slot(its) - 1, To: keys.Slot(its) + 1}},
		}}, func(w *world) { w.late(w.set(2000, history.Timer, its, "p", 5000), 2500) }, ""},
		{"an occurrence of its timer is late", silent, func(w *world) {
			w.occur(w.repeats(its, history.OK, true), 0, 1, 2, 3)
			delay(&w.Messages[2], 2500)
		}, ""},
		{"an occurrence of another one's is late", silent, func(w *world) {
			w.occur(w.repeats(other, history.OK, true), 0, 1, 2, 3)
			delay(&w.Messages[2], 2500)
		}, "innocent"},
		{"an occurrence is late beside a fault of another app",
			[]history.Fault{of("bad", deaf(history.Delays, 1000, 60_000))}, func(w *world) {
				w.occur(w.repeats(other, history.OK, true), 0, 1, 2, 3)
				delay(&w.Messages[2], 2500)
			}, ""},
		{"many occurrences are somewhat late", silent, func(w *world) { rounds(w, 300) }, "innocent"},
		{"many occurrences are somewhat late, as they are without its being silent", nil,
			func(w *world) { rounds(w, 300) }, ""},
		{"its plain timer is not heard of", silent, func(w *world) { w.set(2000, history.Set, its, "p", 5000) }, ""},
		{"another one's plain timer is lost", silent, func(w *world) { w.set(2000, history.Set, other, "p", 5000) },
			"lost"},
		{"its plain timer that outlives this is lost", silent,
			func(w *world) { w.set(2000, history.Set, its, "p", 90_000) }, "lost"},
		{"its timer of timer_set is lost", silent, func(w *world) { w.set(2000, history.Timer, its, "p", 5000) },
			"lost"},
		{"its timer is deleted, which is not heard of", silent, func(w *world) {
			op := w.set(0, history.Timer, its, "p", 8000)
			w.do(4000, history.Op{Kind: history.Del, Key: its, Reply: "1"})
			w.fire(op)
		}, ""},
		{"another one's is deleted", silent, func(w *world) {
			op := w.set(0, history.Timer, other, "p", 8000)
			w.do(4000, history.Op{Kind: history.Del, Key: other, Reply: "1"})
			w.fire(op)
		}, "resurrected"},
		{"its timer is too late", silent, func(w *world) { tooLate(w, its) }, ""},
		{"another one's is too late", silent, func(w *world) { tooLate(w, other) }, "too late"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(c.faults...)
			c.play(w)
			if got := w.verdicts(); got != c.want {
				t.Errorf("judged %q, want %q", got, c.want)
			}
		})
	}
}

// tooLate has a timer with a limit become a dead letter because it was too late.
func tooLate(w *world, key string) {
	op := w.do(2000, history.Op{Kind: history.Timer, Key: key, Payload: "p", Attempt: 1, TTL: 5000, Late: 3000,
		Own: true})
	m := w.fire(op)
	m.Stream, m.Reason, m.Stored = history.DeadStream, "late: 4s after its due time, at most 3s", op.Due+4100
}

// rounds has 200 timers repeat, one every 5 ms. All their occurrences but the first are late.
func rounds(w *world, by int64) {
	for i := range int64(200) {
		op := history.Op{
			Kind: history.Repeat, Key: fmt.Sprintf("a:b:round:%d", i), Payload: "p", Attempt: 1, CatchUp: true,
			At: began + 5000 + 5*i, Every: 1000, Until: began + 8000 + 5*i, Due: began + 5000 + 5*i,
		}
		op = w.do(2000, op)
		first := len(w.Messages)
		w.occur(op, 0, 1, 2, 3)
		for n := first + 1; n < len(w.Messages); n++ {
			delay(&w.Messages[n], by)
		}
	}
}

// crowd has 600 timers fire, one every 80 ms, the first of them late.
func crowd(w *world, late int, by int64) {
	for i := range 600 {
		op := w.set(2000+int64(i)*80, history.Timer, fmt.Sprintf("a:b:c:%d", i), "p", 50)
		if i < late {
			w.late(op, by)
		} else {
			w.fire(op)
		}
	}
}
