package checker_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/torture/internal/checker"
	"github.com/timerd-io/timerd/torture/internal/history"
)

// began is when all histories of these tests begin.
const began = 1_800_000_000_000

// world is a perfect timerd: it writes the history of its operations.
type world struct {
	history.History
	seq int
}

func newWorld(faults ...history.Fault) *world {
	w := &world{}
	w.Run = history.Run{Shape: "standalone", Timerds: 1, Began: began, Lease: 2000}
	w.Faults = faults
	w.End = history.End{At: began + 600_000, Drained: true}
	return w
}

// deaf is a fault between two times, from the beginning on.
func deaf(effect history.Effect, from, to int64) history.Fault {
	return history.Fault{
		Kind: "fault", Effect: effect, Timerds: []int{0},
		From: began + from, Healed: began + to, Hearing: began + to, Ready: began + to,
	}
}

// onTimerd has another timerd have a fault.
func onTimerd(timerd int, f history.Fault) history.Fault {
	f.Timerds = []int{timerd}
	return f
}

// Of three timerds two listen, and which ones is unknown. So commands while two are deaf may be missed.
func TestTwoOfThreeTimerdsListen(t *testing.T) {
	const key = "a:b:c:1"
	for _, c := range []struct {
		timerds int
		faults  []history.Fault
		want    string
	}{
		{3, nil, "resurrected"},
		{3, []history.Fault{deaf(history.Deafens, 500, 9000)}, "resurrected"},
		{3, []history.Fault{deaf(history.Deafens, 500, 9000), onTimerd(2, deaf(history.Deafens, 800, 9000))}, ""},
		{3, []history.Fault{deaf(history.Deafens, 500, 9000), onTimerd(2, deaf(history.Delays, 800, 9000))},
			"resurrected"},
		{2, []history.Fault{deaf(history.Deafens, 500, 9000)}, "resurrected"},
		{2, []history.Fault{deaf(history.Deafens, 500, 9000), onTimerd(1, deaf(history.Deafens, 800, 9000))}, ""},
	} {
		w := newWorld(c.faults...)
		w.Run.Timerds = c.timerds
		op := w.set(0, history.Set, key, "p", 8000)
		w.do(1000, history.Op{Kind: history.Del, Key: key, Reply: "1"})
		w.fire(op)
		if got := w.verdicts(); got != c.want {
			t.Errorf("%d timerds, %d faults: %q, want %q", c.timerds, len(c.faults), got, c.want)
		}
	}
}

// do adds an operation at a time from the beginning on. It takes a ms.
func (w *world) do(at int64, op history.Op) history.Op {
	w.seq++
	op.Invoked, op.Ended = began+at, began+at+1
	if op.Outcome == "" {
		op.Outcome = history.OK
	}
	if op.Outcome == history.OK && op.Kind != history.Retry {
		op.Before, op.After = op.Invoked, op.Ended
		if op.TTL != 0 {
			op.Due = op.Invoked + op.TTL
		}
	}
	w.Ops = append(w.Ops, op)
	return op
}

// set sets a timer.
func (w *world) set(at int64, kind history.Kind, key, payload string, ttl int64) history.Op {
	return w.do(at, history.Op{Kind: kind, Key: key, Payload: payload, Attempt: 1, TTL: ttl})
}

// fire has the timer of an operation fire.
func (w *world) fire(op history.Op) *history.Message {
	return w.emit(op.Key, op.Due, op.Attempt, op.Payload)
}

func (w *world) emit(key string, due int64, attempt int, payload string) *history.Message {
	id := fmt.Sprintf("%s@%d.%d", key, due, attempt)
	w.Messages = append(w.Messages, history.Message{
		Stream: history.FiredStream, Seq: uint64(len(w.Messages) + 1), Stored: due + 3, ID: id,
		Key: key, EventID: id, Time: due + 1, Due: due, Attempt: attempt, Payload: payload, Trigger: "deadline",
	})
	return &w.Messages[len(w.Messages)-1]
}

// verdicts returns the classes of all violations, in their order.
func (w *world) verdicts() string {
	var all []string
	for _, v := range checker.Judge(&w.History).Violations {
		all = append(all, string(v.Class))
	}
	return strings.Join(all, ", ")
}

// Each violation that a history can hold gets its verdict, and each excuse is one.
func TestVerdicts(t *testing.T) {
	const key = "a:b:c:1"
	for _, c := range []struct {
		name   string
		faults []history.Fault
		play   func(w *world)
		want   string
	}{
		{"fires", nil, func(w *world) {
			w.fire(w.set(0, history.Timer, key, "p", 5000))
		}, ""},
		{"fires, and the account differs", nil, func(w *world) {
			w.fire(w.set(0, history.Timer, key, "p", 5000))
			w.End.Account = "the account differs: partition t by 1"
		}, "account"},
		{"timer_set is lost", nil, func(w *world) {
			w.set(0, history.Timer, key, "p", 5000)
		}, "lost"},
		{"a plain timer is lost", nil, func(w *world) {
			w.set(0, history.Set, key, "p", 5000)
		}, "lost"},
		{"timer_set is lost, deafness is no excuse", []history.Fault{deaf(history.Deafens, 0, 9000)}, func(w *world) {
			w.set(100, history.Timer, key, "p", 5000)
		}, "lost"},
		{"a plain timer in a deaf time may be lost", []history.Fault{deaf(history.Deafens, 0, 9000)}, func(w *world) {
			w.set(100, history.Set, key, "p", 5000)
		}, ""},
		{"a plain timer that outlives a deaf time may not", []history.Fault{deaf(history.Deafens, 0, 9000)},
			func(w *world) {
				w.set(100, history.Set, key, "p", 15_000)
			}, "lost"},
		{"carried to another server", []history.Fault{deaf(history.Carries, 1000, 1100)}, func(w *world) {
			op := w.set(0, history.Set, key, "p", 15_000)
			w.emit(key, op.Due+100, 1, "p")
		}, ""},
		{"carried to another server, and later by more than that took",
			[]history.Fault{deaf(history.Carries, 1000, 1100)}, func(w *world) {
				op := w.set(0, history.Set, key, "p", 15_000)
				w.emit(key, op.Due+105, 1, "p")
			}, "unexpected, lost"},
		{"carried to another server before it was set", []history.Fault{deaf(history.Carries, 1000, 1100)},
			func(w *world) {
				op := w.set(5000, history.Set, key, "p", 15_000)
				w.emit(key, op.Due+5, 1, "p")
			}, "unexpected, lost"},
		{"an outage of NATS excuses nothing", []history.Fault{deaf(history.Delays, 0, 9000)}, func(w *world) {
			w.set(100, history.Set, key, "p", 5000)
		}, "lost"},
		{"an unheard replacement ran out, and the known timer of the key fires",
			[]history.Fault{deaf(history.Deafens, 500, 9000)}, func(w *world) {
				op := w.set(0, history.Set, key, "p", 8000)
				w.set(600, history.Set, key, "q", 400)
				w.emit(key, op.Due-1000, 1, "p").Trigger = "expired"
			}, ""},
		{"the same just before the known timer is due",
			[]history.Fault{deaf(history.Deafens, 500, 9000)}, func(w *world) {
				op := w.set(0, history.Set, key, "p", 8000)
				w.set(600, history.Set, key, "q", 6000)
				w.emit(key, op.Due-2, 1, "p").Trigger = "expired"
			}, ""},
		{"the same by no event", []history.Fault{deaf(history.Deafens, 500, 9000)}, func(w *world) {
			op := w.set(0, history.Set, key, "p", 8000)
			w.set(600, history.Set, key, "q", 6000)
			w.emit(key, op.Due-2, 1, "p")
		}, "early"},
		{"a replacement that perhaps was made ran out, and the known timer of the key fires", nil, func(w *world) {
			op := w.set(0, history.Timer, key, "p", 8000)
			w.do(600, history.Op{Kind: history.Set, Key: key, Payload: "q", TTL: 400, Outcome: history.Unknown})
			w.emit(key, op.Due-6900, 1, "p").Trigger = "expired"
		}, ""},
		{"the same before that can have run out", nil, func(w *world) {
			op := w.set(0, history.Timer, key, "p", 8000)
			w.do(600, history.Op{Kind: history.Set, Key: key, Payload: "q", TTL: 4000, Outcome: history.Unknown})
			w.emit(key, op.Due-6900, 1, "p").Trigger = "expired"
		}, "early"},
		{"the same without a reason", []history.Fault{deaf(history.Deafens, 500, 9000)}, func(w *world) {
			op := w.set(0, history.Set, key, "p", 8000)
			w.set(600, history.Set, key, "q", 400)
			w.emit(key, op.Due-1000, 1, "p")
		}, "early"},
		{"the same before the replacement ran out", []history.Fault{deaf(history.Deafens, 500, 9000)}, func(w *world) {
			op := w.set(0, history.Set, key, "p", 8000)
			w.set(600, history.Set, key, "q", 7000)
			w.emit(key, op.Due-1000, 1, "p").Trigger = "expired"
		}, "early"},
		{"the same, but it was heard", nil, func(w *world) {
			op := w.set(0, history.Set, key, "p", 8000)
			w.fire(w.set(600, history.Set, key, "q", 3000))
			w.emit(key, op.Due-1000, 1, "p").Trigger = "expired"
		}, "early"},
		{"an id is there twice", nil, func(w *world) {
			op := w.set(0, history.Timer, key, "p", 5000)
			w.fire(op)
			w.fire(op)
		}, "duplicate"},
		{"one firing under two ids", nil, func(w *world) {
			op := w.set(0, history.Timer, key, "p", 5000)
			w.fire(op)
			w.emit(key, op.Due+1, 1, "p")
		}, "duplicate"},
		{"one firing at two times", nil, func(w *world) {
			op := w.set(0, history.Timer, key, "p", 5000)
			w.fire(op)
			w.emit(key, op.Due+700, 1, "p")
		}, "duplicate"},
		{"published early", nil, func(w *world) {
			op := w.set(0, history.Timer, key, "p", 5000)
			w.fire(op).Time = op.Due - 1
		}, "early"},
		{"stored early", nil, func(w *world) {
			op := w.set(0, history.Timer, key, "p", 5000)
			w.fire(op).Stored = op.Due - 1
		}, "early"},
		{"early by its own account", nil, func(w *world) {
			op := w.set(0, history.Timer, key, "p", 5000)
			w.emit(key, op.Due-1000, 1, "p")
		}, "early, lost"},
		{"another payload", nil, func(w *world) {
			op := w.set(0, history.Timer, key, "p", 5000)
			w.fire(op).Payload = "q"
		}, "wrong payload"},
		{"no payload", nil, func(w *world) {
			m := w.fire(w.set(0, history.Set, key, "p", 5000))
			m.Payload, m.Status = "", "missing"
		}, "wrong payload"},
		{"wrong attempt", nil, func(w *world) {
			op := w.set(0, history.Timer, key, "p", 5000)
			w.emit(key, op.Due, 2, "p")
		}, "wrong attempt"},
		{"cancelled and fired", nil, func(w *world) {
			op := w.set(0, history.Timer, key, "p", 5000)
			w.do(1000, history.Op{Kind: history.Cancel, Key: key, Reply: "cancelled"})
			w.fire(op)
		}, "resurrected"},
		{"cancelled in a deaf time and fired", []history.Fault{deaf(history.Deafens, 0, 9000)}, func(w *world) {
			op := w.set(0, history.Timer, key, "p", 5000)
			w.do(1000, history.Op{Kind: history.Cancel, Key: key, Reply: "cancelled"})
			w.fire(op)
		}, "resurrected"},
		{"deleted and fired", nil, func(w *world) {
			op := w.set(0, history.Timer, key, "p", 5000)
			w.do(1000, history.Op{Kind: history.Del, Key: key, Reply: "1"})
			w.fire(op)
		}, "resurrected"},
		{"deleted in a deaf time and fired", []history.Fault{deaf(history.Deafens, 500, 9000)}, func(w *world) {
			op := w.set(0, history.Timer, key, "p", 5000)
			w.do(1000, history.Op{Kind: history.Del, Key: key, Reply: "1"})
			w.fire(op)
		}, ""},
		{"deleted too late and fired", nil, func(w *world) {
			op := w.set(0, history.Timer, key, "p", 5000)
			w.do(4900, history.Op{Kind: history.Del, Key: key, Reply: "1"})
			w.fire(op)
		}, ""},
		{"replaced and fired", nil, func(w *world) {
			op := w.set(0, history.Timer, key, "p", 5000)
			w.fire(op)
			w.fire(w.set(1000, history.Timer, key, "q", 9000))
		}, "resurrected"},
		{"set again after its time: both", nil, func(w *world) {
			w.fire(w.set(0, history.Timer, key, "p", 5000))
			w.fire(w.set(5010, history.Set, key, "q", 5000))
		}, ""},
		{"set again after its time: the first is overwritten", nil, func(w *world) {
			w.set(0, history.Timer, key, "p", 5000)
			w.fire(w.set(5010, history.Set, key, "q", 5000))
		}, "lost"},
		{"extended", nil, func(w *world) {
			w.set(0, history.Set, key, "p", 5000)
			op := w.do(1000, history.Op{Kind: history.Expire, Key: key, TTL: 9000, Reply: "1"})
			w.emit(key, op.Due, 1, "p")
		}, ""},
		{"extended, and fires at the old time too", nil, func(w *world) {
			w.fire(w.set(0, history.Set, key, "p", 5000))
			op := w.do(1000, history.Op{Kind: history.Expire, Key: key, TTL: 9000, Reply: "1"})
			w.emit(key, op.Due, 1, "p")
		}, "resurrected"},
		{"moved there and back, almost", []history.Fault{deaf(history.Deafens, 500, 9000)}, func(w *world) {
			w.set(0, history.Timer, key, "p", 5000)
			w.do(1000, history.Op{Kind: history.Expire, Key: key, TTL: 9000, Reply: "1"})
			op := w.do(4000, history.Op{Kind: history.Expire, Key: key, TTL: 998, Reply: "1"})
			w.emit(key, op.Due, 1, "p")
		}, ""},
		{"a live key is not found", nil, func(w *world) {
			w.set(0, history.Timer, key, "p", 5000)
			w.do(1000, history.Op{Kind: history.Expire, Key: key, TTL: 9000, Reply: "0"})
		}, "wrong reply"},
		{"a pending timer is called fired", nil, func(w *world) {
			w.set(0, history.Timer, key, "p", 5000)
			w.do(1000, history.Op{Kind: history.Cancel, Key: key, Reply: "fired"})
		}, "wrong reply"},
		{"wrong payload before the next one was cancelled", nil, func(w *world) {
			w.fire(w.set(0, history.Timer, key, "v", 1000)).Payload = "w"
			w.set(3000, history.Timer, key, "x", 5000)
			w.do(4000, history.Op{Kind: history.Cancel, Key: key, Reply: "cancelled"})
		}, "wrong payload"},
		{"too late to cancel", nil, func(w *world) {
			w.fire(w.set(0, history.Timer, key, "p", 5000))
			w.do(5100, history.Op{Kind: history.Cancel, Key: key, Reply: "fired"})
		}, ""},
		{"too late to cancel, and lost", nil, func(w *world) {
			w.set(0, history.Timer, key, "p", 5000)
			w.do(5100, history.Op{Kind: history.Cancel, Key: key, Reply: "fired"})
		}, "lost"},
		{"unknown: fires", nil, func(w *world) {
			w.do(0, history.Op{Kind: history.Timer, Key: key, Payload: "p", TTL: 5000, Outcome: history.Unknown})
			w.emit(key, began+5800, 1, "p")
		}, ""},
		{"unknown: does not fire", nil, func(w *world) {
			w.set(0, history.Timer, key, "p", 5000)
			w.do(1000, history.Op{Kind: history.Cancel, Key: key, Outcome: history.Unknown})
		}, ""},
		{"unknown: another payload", nil, func(w *world) {
			w.do(0, history.Op{Kind: history.Timer, Key: key, Payload: "p", TTL: 5000, Outcome: history.Unknown})
			w.emit(key, began+5001, 1, "q")
		}, "unexpected"},
		{"unknown: early", nil, func(w *world) {
			w.do(0, history.Op{Kind: history.Timer, Key: key, Payload: "p", TTL: 5000, Outcome: history.Unknown})
			w.emit(key, began+4000, 1, "p")
		}, "early"},
		{"unknown, repeated, and lost", nil, func(w *world) {
			w.do(0, history.Op{Kind: history.Timer, Key: key, Payload: "p", At: began + 5000, Outcome: history.Unknown})
			w.do(100, history.Op{Kind: history.Timer, Key: key, Payload: "p", At: began + 5000, Due: began + 5000})
		}, "lost"},
		{"failed: fires", nil, func(w *world) {
			w.do(0, history.Op{Kind: history.Timer, Key: key, Payload: "p", TTL: 5000, Outcome: history.Failed})
			w.emit(key, began+5000, 1, "p")
		}, "unexpected"},
		{"retried", nil, func(w *world) {
			m := w.fire(w.set(0, history.Timer, key, "p", 5000))
			w.do(6000, retryOf(m, 1000))
			w.emit(key, began+7001, 2, "p")
		}, ""},
		{"retry is lost", nil, func(w *world) {
			m := w.fire(w.set(0, history.Timer, key, "p", 5000))
			w.do(6000, retryOf(m, 1000))
		}, "lost"},
		{"retry as attempt 1", nil, func(w *world) {
			m := w.fire(w.set(0, history.Timer, key, "p", 5000))
			w.do(6000, retryOf(m, 1000))
			w.emit(key, began+7001, 1, "p")
		}, "wrong attempt"},
		{"postponed", nil, func(w *world) {
			m := w.fire(w.set(0, history.Timer, key, "p", 5000))
			op := retryOf(m, 1000)
			op.Max, op.Postponed, op.Origin = 1, true, m.EventID
			w.do(6000, op)
			w.emit(key, began+7001, 1, "p").Origin = m.EventID
		}, ""},
		{"postponed as a retry", nil, func(w *world) {
			m := w.fire(w.set(0, history.Timer, key, "p", 5000))
			op := retryOf(m, 1000)
			op.Postponed = true
			w.do(6000, op)
			w.emit(key, began+7001, 2, "p")
		}, "wrong attempt"},
		{"retry of another first event", nil, func(w *world) {
			m := w.fire(w.set(0, history.Timer, key, "p", 5000))
			op := retryOf(m, 1000)
			op.Origin = m.EventID
			w.do(6000, op)
			w.emit(key, began+7001, 2, "p").Origin = key + "@1.1"
		}, "wrong attempt"},
		{"retry twice", nil, func(w *world) {
			m := w.fire(w.set(0, history.Timer, key, "p", 5000))
			w.do(6000, retryOf(m, 1000))
			w.emit(key, began+7000, 2, "p")
			w.emit(key, began+7001, 2, "p")
		}, "duplicate"},
		{"retry that was cancelled", nil, func(w *world) {
			m := w.fire(w.set(0, history.Timer, key, "p", 5000))
			w.do(6000, retryOf(m, 3000))
			w.do(7000, history.Op{Kind: history.Cancel, Key: key, Reply: "cancelled"})
			w.emit(key, began+9001, 2, "p")
		}, "resurrected"},
		{"retry in a failover", []history.Fault{deaf(history.Failover, 5900, 9000)}, func(w *world) {
			m := w.fire(w.set(0, history.Timer, key, "p", 5000))
			w.do(6000, retryOf(m, 1000))
		}, ""},
		{"retry beside a newer timer", nil, func(w *world) {
			m := w.fire(w.set(0, history.Timer, key, "p", 5000))
			op := w.set(6000, history.Timer, key, "q", 5000)
			w.do(6010, retryOf(m, 1000))
			w.emit(key, began+7011, 2, "p")
			w.fire(op)
		}, ""},
		{"dead letter", nil, func(w *world) {
			m := w.fire(w.set(0, history.Timer, key, "p", 5000))
			op := retryOf(m, 0)
			op.Max = 1
			w.do(6000, op)
			w.emit(key, m.Due, 1, "p").Stream = history.DeadStream
		}, ""},
		{"dead letter is lost", nil, func(w *world) {
			m := w.fire(w.set(0, history.Timer, key, "p", 5000))
			op := retryOf(m, 0)
			op.Max = 1
			w.do(6000, op)
		}, "lost"},
		{"a dead letter nobody asked for", nil, func(w *world) {
			m := *w.fire(w.set(0, history.Timer, key, "p", 5000))
			m.Stream = history.DeadStream
			w.Messages = append(w.Messages, m)
		}, "duplicate"},
		{"a key nobody set", nil, func(w *world) {
			w.emit(key, began+5000, 1, "p")
		}, "unexpected"},
		{"not an event", nil, func(w *world) {
			w.Messages = append(w.Messages, history.Message{Stream: history.FiredStream, ID: "x", Fault: "not JSON"})
		}, "malformed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(c.faults...)
			c.play(w)
			if got := w.verdicts(); got != c.want {
				t.Errorf("verdicts %q, want %q", got, c.want)
			}
		})
	}
}

// retryOf is a request to retry an event.
func retryOf(m *history.Message, delay int64) history.Op {
	return history.Op{
		Kind: history.Retry, Key: m.Key, Payload: m.Payload, Attempt: m.Attempt, Max: 9, TTL: delay,
		EventID: m.EventID, Due: m.Due,
	}
}
