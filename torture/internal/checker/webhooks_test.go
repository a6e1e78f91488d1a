package checker_test

import (
	"fmt"
	"testing"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// The hosts of these tests.
const (
	steadyHost = "127.0.0.1:1"
	frailHost  = "127.0.0.1:2"
	fixedHost  = "127.0.0.1:3"
)

// newHooks returns a world with two timerd deliver that call hosts.
func newHooks(faults ...history.Fault) *world {
	w := newWorld(faults...)
	w.Run.Deliverers, w.Run.Steady, w.Run.Fixed = 2, []string{steadyHost, fixedHost}, fixedHost
	return w
}

// upon makes a fault one that concerns some timerd deliver.
func upon(effect history.Effect, from, to int64, deliverers ...int) history.Fault {
	f := of(history.HookApp, deaf(effect, from, to))
	f.Timerds, f.Deliverers = nil, deliverers
	return f
}

// without is a fault by which a host is away.
func without(host string, from, to int64) history.Fault {
	f := upon("", from, to)
	f.Host = host
	return f
}

// hook has a timer fire that is to be delivered to a host.
func (w *world) hook(at int64, n int, host, path string) history.Message {
	key := fmt.Sprintf("%s:call:call:%d", history.HookApp, n)
	m := w.fire(w.set(at, history.Timer, key, fmt.Sprintf(`{"order":"%d","notify_url":"http://%s%s"}`, n, host, path),
		1000))
	m.Max = 3
	return *m
}

// again has the event fire that a delivery of another has asked for.
func (w *world) again(m history.Message, attempt int, after int64) history.Message {
	next := w.emit(m.Key, m.Due+after, attempt, m.Payload)
	next.Max = m.Max
	if next.Origin = m.Origin; next.Origin == "" {
		next.Origin = m.EventID
	}
	return *next
}

// bury has an event become a dead letter.
func (w *world) bury(m history.Message, at int64, reason string) {
	if m.Origin == "" {
		m.Origin = m.EventID
	}
	m.Stream, m.Reason, m.Stored = history.DeadStream, reason, began+at
	w.Messages = append(w.Messages, m)
}

// call has a deliverer call a host, which answers within 10 ms.
func (w *world) call(m history.Message, at int64, deliverer, status int, host, path string) *history.Call {
	origin := m.Origin
	if origin == "" {
		origin = m.EventID
	}
	w.Calls = append(w.Calls, history.Call{
		WebhookID: origin, Key: m.Key, EventID: m.EventID, Origin: origin, Attempt: m.Attempt, Payload: m.Payload,
		Host: host, Path: path, Deliverer: deliverer, Start: 1, At: began + at, Answered: began + at + 10,
		Status: status,
	})
	return &w.Calls[len(w.Calls)-1]
}

// log has a delivery written down that took 10 ms, or none.
func (w *world) log(m history.Message, at int64, status int, host string, result history.Result) *history.Delivery {
	origin := m.Origin
	if origin == "" {
		origin = m.EventID
	}
	r := history.Delivery{
		ID: m.EventID, Origin: origin, Key: m.Key, Attempt: m.Attempt, Host: host, Status: status, Result: result,
		Time: began + at, Stored: began + at + 13,
	}
	if status != 0 {
		r.Took = 11
	}
	w.Deliveries = append(w.Deliveries, r)
	return &w.Deliveries[len(w.Deliveries)-1]
}

// deliver is a call of the usual kind, and its record.
func (w *world) deliver(m history.Message, at int64, status int, host string, result history.Result) {
	w.call(m, at, 0, status, host, history.PathUsual)
	w.log(m, at, status, host, result)
}

// The duties of timerd deliver, and the excuses of faults.
func TestVerdictsOnWebhooks(t *testing.T) {
	const ok, retry, postponed, dead = history.Delivered, history.Retried, history.Postponed, history.Died
	killed := []history.Fault{upon(history.Forgets, 1005, 3000, 0)}
	later := []history.Fault{upon(history.Forgets, 15_000, 17_000, 0)}
	paused := []history.Fault{upon(history.Delays, 1005, 40_000, 0)}
	stopped := []history.Fault{upon(history.Hurries, 1005, 3000, 0)}
	offline := append([]history.Fault{upon(history.Delays, 900, 3000, 0)}, stopped...)
	away := []history.Fault{without(frailHost, 900, 20_000)}
	failover := []history.Fault{deaf(history.Failover, 500, 2000)}
	const steady, frail, usual, gone = steadyHost, frailHost, history.PathUsual, history.PathGone
	for _, c := range []struct {
		name   string
		faults []history.Fault
		play   func(w *world)
		want   string
	}{
		{"delivered", nil, func(w *world) {
			w.deliver(w.hook(0, 1, steady, usual), 1010, 200, steady, ok)
		}, ""},
		{"nobody got it", nil, func(w *world) { w.hook(0, 1, steady, usual) }, "undelivered, unlogged"},
		{"nobody got it, but the log says so", nil, func(w *world) {
			w.log(w.hook(0, 1, steady, usual), 1010, 200, steady, ok)
		}, "undelivered, wrong record"},
		{"to the fixed host", nil, func(w *world) {
			m := w.fire(w.set(0, history.Timer, "hook:fixed:call:1", "p", 1000))
			w.deliver(*m, 1010, 200, fixedHost, ok)
		}, ""},
		{"to another host", nil, func(w *world) {
			w.deliver(w.hook(0, 1, frail, usual), 1010, 200, steady, ok)
		}, "bad webhook"},
		{"to another path", nil, func(w *world) {
			w.deliver(w.hook(0, 1, steady, gone), 1010, 200, steady, ok)
		}, "bad webhook"},
		{"with a bad signature", nil, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.deliver(m, 1010, 200, steady, ok)
			w.call(m, 1005, 0, 0, steady, usual).Fault = "no matching signature found"
		}, "bad webhook"},
		{"with another payload", nil, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.log(m, 1010, 200, steady, ok)
			w.call(m, 1010, 0, 200, steady, usual).Payload = "q"
		}, "bad webhook"},
		{"of no event", nil, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.deliver(m, 1010, 200, steady, ok)
			m.EventID, m.Origin = "nobody's", "nobody's"
			w.call(m, 1010, 0, 500, steady, usual)
		}, "bad webhook"},
		{"a record of no event", nil, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.deliver(m, 1010, 200, steady, ok)
			m.EventID = "nobody's"
			w.log(m, 1010, 0, steady, postponed)
		}, "wrong record"},

		{"fails, and is tried again", nil, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.deliver(m, 1010, 500, steady, retry)
			w.deliver(w.again(m, 2, 300), 1310, 200, steady, ok)
		}, ""},
		{"the id changes", nil, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.deliver(m, 1010, 500, steady, retry)
			w.deliver(w.again(m, 2, 300), 1310, 200, steady, ok)
			w.Calls[1].WebhookID = "another"
		}, "bad webhook"},
		{"two have one id", nil, func(w *world) {
			w.deliver(w.hook(0, 1, steady, usual), 1010, 200, steady, ok)
			w.deliver(w.hook(0, 2, steady, usual), 1010, 200, steady, ok)
			w.Calls[1].WebhookID = w.Calls[0].WebhookID
		}, "bad webhook"},
		{"fails, and is not tried again", nil, func(w *world) {
			w.deliver(w.hook(0, 1, steady, usual), 1010, 500, steady, retry)
		}, "undelivered"},
		{"the request is lost in a failover", failover, func(w *world) {
			w.deliver(w.hook(0, 1, steady, usual), 1010, 500, steady, retry)
		}, ""},
		{"an attempt that nobody asked for", nil, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.deliver(m, 1010, 200, steady, ok)
			w.deliver(w.again(m, 2, 300), 1310, 500, steady, retry)
		}, "charged, repeated"},
		{"an attempt of a timer that never fired", nil, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.deliver(m, 1010, 500, steady, retry)
			m.EventID = "nobody's"
			w.again(m, 2, 300)
		}, "undelivered, unexpected"},
		{"another payload when tried again", nil, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.deliver(m, 1010, 500, steady, retry)
			m.Payload += " "
			w.deliver(w.again(m, 2, 300), 1310, 200, steady, ok)
		}, "wrong payload"},

		{"put off", nil, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.log(m, 1010, 0, steady, postponed)
			w.deliver(w.again(m, 1, 300), 1310, 200, steady, ok)
		}, ""},
		{"put off, and an attempt is gone", nil, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.log(m, 1010, 0, steady, postponed)
			w.deliver(w.again(m, 2, 300), 1310, 200, steady, ok)
		}, "charged"},
		{"put off in spite of an answer", nil, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.deliver(m, 1010, 404, steady, postponed)
			w.deliver(w.again(m, 1, 300), 1310, 200, steady, ok)
		}, "wrong record"},
		{"no answer from a host that is there", nil, func(w *world) {
			m := w.hook(0, 1, frail, usual)
			w.log(m, 1010, 0, frail, retry)
			w.deliver(w.again(m, 2, 300), 1310, 200, frail, ok)
		}, "charged"},
		{"no answer from a host that is away", away, func(w *world) {
			m := w.hook(0, 1, frail, usual)
			w.log(m, 1010, 0, frail, retry)
			w.deliver(w.again(m, 2, 30_000), 31_010, 200, frail, ok)
		}, ""},
		{"no answer from a host that hangs", nil, func(w *world) {
			m := w.hook(0, 1, frail, usual)
			w.deliver(m, 1010, 0, frail, retry)
			w.deliver(w.again(m, 2, 300), 1310, 200, frail, ok)
		}, ""},
		{"many attempts at a host that is away", away, func(w *world) {
			for i := range 41 {
				m := w.hook(0, i, frail, usual)
				w.log(m, 1010, 0, frail, retry)
				w.deliver(w.again(m, 2, 30_000), 31_010, 200, frail, ok)
			}
		}, "charged"},
		{"it is left alone", away, func(w *world) {
			for i := range 60 {
				m := w.hook(0, i, frail, usual)
				result, attempt := retry, 2
				if i >= 40 {
					result, attempt = postponed, 1
				}
				w.log(m, 1010, 0, frail, result)
				w.deliver(w.again(m, attempt, 30_000), 31_010, 200, frail, ok)
			}
		}, ""},

		{"nobody wants it", nil, func(w *world) {
			m := w.hook(0, 1, steady, gone)
			w.call(m, 1010, 0, 410, steady, gone)
			w.log(m, 1010, 410, steady, dead)
			w.bury(m, 1030, "given up by the consumer")
		}, ""},
		{"nobody wants it, and it is no dead letter", nil, func(w *world) {
			m := w.hook(0, 1, steady, gone)
			w.call(m, 1010, 0, 410, steady, gone)
			w.log(m, 1010, 410, steady, dead)
		}, "undelivered"},
		{"a dead letter without a reason", nil, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.deliver(m, 1010, 500, steady, retry)
			w.bury(m, 1030, "given up by the consumer")
		}, "wrong end"},
		{"attempts are used up", nil, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.deliver(m, 1010, 500, steady, retry)
			m = w.again(m, 2, 300)
			w.deliver(m, 1310, 500, steady, retry)
			m = w.again(m, 3, 300)
			w.deliver(m, 1610, 500, steady, dead)
			w.bury(m, 1630, "attempts used up")
		}, ""},
		{"nobody wants the last attempt", nil, func(w *world) {
			m := w.hook(0, 1, steady, gone)
			m.Max, w.Messages[0].Max = 1, 1
			w.call(m, 1010, 0, 410, steady, gone)
			w.log(m, 1010, 410, steady, dead)
			w.bury(m, 1030, "attempts used up")
		}, ""},
		{"too early used up", nil, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.deliver(m, 1010, 500, steady, retry)
			m = w.again(m, 2, 300)
			w.deliver(m, 1310, 500, steady, dead)
			w.bury(m, 1330, "attempts used up")
		}, "wrong end, wrong record"},
		{"no payload", []history.Fault{of(history.HookApp, deaf(history.Deafens, 0, 900))}, func(w *world) {
			op := w.set(100, history.Set, "hook:call:call:1", `{"notify_url":"x"}`, 1000)
			m := w.emit(op.Key, op.Due+40, 1, "")
			m.Status, m.Trigger = "missing", "expired"
			w.log(*m, 1150, 0, "", dead)
			w.bury(*m, 1180, "given up by the consumer")
		}, ""},

		{"a call is not logged", nil, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.deliver(m, 1010, 500, steady, retry)
			w.deliver(w.again(m, 2, 300), 1310, 200, steady, ok)
			w.call(m, 1005, 0, 404, steady, usual)
		}, "unlogged"},
		{"a call whose process was killed", killed, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.call(m, 1005, 0, 200, steady, usual)
			w.call(m, 31_010, 1, 200, steady, usual)
			w.log(m, 31_010, 200, steady, ok)
		}, ""},
		{"and its repetition is not logged either", killed, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.call(m, 1005, 0, 200, steady, usual)
			w.call(m, 31_010, 1, 200, steady, usual)
		}, "unlogged, unlogged"},
		{"the other process was killed", killed, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.call(m, 1005, 1, 200, steady, usual)
			w.call(m, 31_010, 1, 200, steady, usual)
			w.log(m, 31_010, 200, steady, ok)
		}, "unlogged, repeated"},
		{"a process killed before a silent host's answer arrived", append(away, later...), func(w *world) {
			m := w.hook(0, 1, frail, usual)
			w.call(m, 1005, 0, 200, frail, usual)
			w.call(m, 31_010, 1, 200, frail, usual)
			w.log(m, 31_010, 200, frail, ok)
		}, ""},
		{"the same, and another host was silent", append(away, later...), func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.call(m, 1005, 0, 200, steady, usual)
			w.call(m, 31_010, 1, 200, steady, usual)
			w.log(m, 31_010, 200, steady, ok)
		}, "unlogged, repeated"},
		{"a call whose process was paused", paused, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.call(m, 1005, 0, 200, steady, usual)
			w.call(m, 31_010, 1, 200, steady, usual)
			w.log(m, 1005, 0, steady, retry).Took = 39_000
			w.log(m, 31_010, 200, steady, ok)
			w.deliver(w.again(m, 2, 40_000), 41_010, 200, steady, ok)
		}, ""},
		{"a call that a busy machine brought late", nil, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.Stalls = []history.Stall{{From: began + 1100, To: began + 3000}}
			w.log(m, 1010, 0, steady, retry).Took = 3000
			w.call(m, 3900, 0, 200, steady, usual)
			w.deliver(w.again(m, 2, 5000), 6010, 200, steady, ok)
		}, ""},
		{"the same, and the machine was busy before the delivery", nil, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.Stalls = []history.Stall{{From: began + 100, To: began + 1000}}
			w.log(m, 1010, 0, steady, retry).Took = 3000
			w.call(m, 3900, 0, 200, steady, usual)
			w.deliver(w.again(m, 2, 5000), 6010, 200, steady, ok)
		}, "unlogged, charged, repeated, held up"},
		{"two calls, and the record of the first is stored first", paused, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.call(m, 1010, 0, 200, steady, usual)
			w.call(m, 1500, 1, 200, steady, usual)
			w.log(m, 1009, 200, steady, ok)
			w.log(m, 1008, 200, steady, ok).Stored = began + 2000
		}, ""},
		{"a success that nobody wrote down in the end", paused, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.call(m, 1005, 0, 200, steady, usual)
			w.log(m, 1005, 0, steady, retry).Took = 39_000
		}, "unlogged"},
		{"a paused process forgets nothing", paused, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.call(m, 1005, 0, 200, steady, usual)
			w.call(m, 31_010, 1, 200, steady, usual)
			w.log(m, 31_010, 200, steady, ok)
		}, "unlogged"},
		{"a process that stops forgets nothing", stopped, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.call(m, 1005, 0, 200, steady, usual)
			w.call(m, 31_010, 1, 200, steady, usual)
			w.log(m, 31_010, 200, steady, ok)
		}, "unlogged"},
		{"but it does without NATS", offline, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.call(m, 1005, 0, 200, steady, usual)
			w.call(m, 31_010, 1, 200, steady, usual)
			w.log(m, 31_010, 200, steady, ok)
		}, ""},
		{"a call comes when the host is back", away, func(w *world) {
			m := w.hook(0, 1, frail, usual)
			w.log(m, 1010, 0, frail, retry)
			w.call(m, 20_010, 0, 200, frail, usual)
			w.deliver(w.again(m, 2, 300), 21_310, 200, frail, ok)
		}, ""},

		{"again after a success", nil, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.deliver(m, 1010, 200, steady, ok)
			w.deliver(m, 31_010, 200, steady, ok)
		}, "repeated"},
		{"again, and the process was killed before it had settled it", killed, func(w *world) {
			m := w.hook(0, 1, steady, usual)
			w.deliver(m, 1005, 200, steady, ok)
			w.deliver(m, 31_010, 200, steady, ok)
		}, ""},
		{"again, and the process was killed long after", []history.Fault{upon(history.Forgets, 9000, 10_000, 0)},
			func(w *world) {
				m := w.hook(0, 1, steady, usual)
				w.deliver(m, 1005, 200, steady, ok)
				w.deliver(m, 31_010, 200, steady, ok)
			}, "repeated"},

		{"held up", nil, func(w *world) {
			w.deliver(w.hook(0, 1, steady, usual), 4010, 200, steady, ok)
		}, "held up"},
		{"held up by the death of its deliverer", killed, func(w *world) {
			w.deliver(w.hook(0, 1, steady, usual), 31_010, 200, steady, ok)
		}, ""},
		{"held up at a host that may be late", nil, func(w *world) {
			w.deliver(w.hook(0, 1, frail, usual), 4010, 200, frail, ok)
		}, ""},
		{"held up by another host", away, func(w *world) {
			w.deliver(w.hook(0, 1, steady, usual), 4010, 200, steady, ok)
		}, "held up"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newHooks(c.faults...)
			c.play(w)
			if got := w.verdicts(); got != c.want {
				t.Errorf("judged %q, want %q", got, c.want)
			}
		})
	}
}
