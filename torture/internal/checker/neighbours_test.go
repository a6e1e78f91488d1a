package checker_test

import (
	"fmt"
	"testing"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// of makes a fault one that concerns one app only.
func of(app string, f history.Fault) history.Fault {
	f.Apps = []string{app}
	return f
}

// late has the timer of an operation fire late.
func (w *world) late(op history.Op, by int64) *history.Message {
	m := w.fire(op)
	m.Time, m.Stored = m.Time+by, m.Stored+by
	return m
}

// dead has a retry request become a dead letter.
func (w *world) dead(op history.Op, id, reason string) *history.Message {
	m := w.emit(op.Key, op.Due, op.Attempt, op.Payload)
	m.Stream, m.ID, m.Reason = history.DeadStream, id, reason
	return m
}

// What each fault that concerns one app, or keys alone, excuses and what not.
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
		op := history.Op{Kind: history.Retry, Key: giant, Payload: "p", Attempt: 1, Max: 5, Due: began + 1000, Refused: true}
		return w.do(2000, op)
	}
	large := func(w *world) history.Op {
		return w.do(0, history.Op{Kind: history.Hash, Key: giant, Fields: 1001, Status: "toolarge", Attempt: 1, TTL: 5000})
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

		{"what is too large says so", nil, func(w *world) {
			w.fire(large(w)).Status = "toolarge"
		}, ""},
		{"what is too large fires all the same", nil, func(w *world) { large(w) }, "lost"},
		{"what is too large does not fire with something", nil, func(w *world) {
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
