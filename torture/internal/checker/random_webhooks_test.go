package checker_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/timerd-io/timerd/torture/internal/checker"
	"github.com/timerd-io/timerd/torture/internal/history"
)

// The faults of random histories of webhooks: a timerd deliver is killed, another one paused, a host is away.
const (
	killedAt, startedAt = 50_000, 53_000
	pausedAt, resumedAt = 120_000, 126_000
	awayAt, backAt      = 190_000, 205_000
	redelivered         = 30_000
)

// randomHooks writes a clean history of webhooks: a perfect timerd deliver's, with hosts that fail at random. It
// returns its timers that no fault can concern.
func randomHooks(rt *rapid.T) (w *world, calm []history.Message) {
	w = newHooks(upon(history.Forgets, killedAt, startedAt, 0), upon(history.Delays, pausedAt, resumedAt, 1),
		without(frailHost, awayAt, backAt))
	for n := range rapid.IntRange(3, 15).Draw(rt, "timers") {
		at := int64(rapid.SampledFrom([]int{1000, 20_000, killedAt - 1040, pausedAt - 2000, awayAt - 1000, awayAt +
			5000, 300_000}).Draw(rt, "at"))
		host := rapid.SampledFrom([]string{steadyHost, frailHost}).Draw(rt, "host")
		first := w.hook(at, n, host, history.PathUsual)
		w.deliverAtRandom(rt, first, host)
		if at <= 20_000 || at >= 300_000 {
			calm = append(calm, first)
		}
	}
	return w, calm
}

// deliverAtRandom delivers a timer's events until one is delivered or dead.
func (w *world) deliverAtRandom(rt *rapid.T, m history.Message, host string) {
	for {
		at := m.Stored - began + int64(rapid.IntRange(1, 30).Draw(rt, "takes"))
		deliverer := rapid.IntRange(0, 1).Draw(rt, "deliverer")
		if deliverer == 0 && killedAt <= at && at < startedAt || pausedAt <= at && at < resumedAt {
			deliverer = 1 - deliverer
		}
		status := rapid.SampledFrom([]int{0, 200, 200, 200, 404, 500, 503}).Draw(rt, "status")
		if deliverer == 0 && killedAt-50 <= at && at < killedAt && rapid.Bool().Draw(rt, "killed") {
			w.call(m, at, deliverer, status, host, history.PathUsual)
			at, deliverer = at+redelivered, 1
		}
		if host == frailHost && (awayAt <= at && at < backAt || rapid.IntRange(0, 5).Draw(rt, "postponed") == 0) {
			w.log(m, at, 0, host, history.Postponed)
			m = w.again(m, m.Attempt, at-m.Due+began+2000)
			continue
		}
		w.call(m, at, deliverer, status, host, history.PathUsual)
		switch {
		case status == 200:
			w.log(m, at, status, host, history.Delivered)
			return
		case m.Attempt == m.Max:
			w.log(m, at, status, host, history.Died)
			w.bury(m, at+30, "attempts used up")
			return
		}
		w.log(m, at, status, host, history.Retried)
		m = w.again(m, m.Attempt+1, at-m.Due+began+500)
	}
}

func TestCleanWebhooksPass(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w, _ := randomHooks(rt)
		r := checker.Judge(&w.History)
		for _, v := range r.Violations {
			rt.Errorf("%s: %s\n%s", v.Class, v.Text, strings.Join(v.Tale, "\n"))
		}
		if got := r.Webhooks; got.Delivered+got.Dead != got.Origins || got.Origins == 0 {
			rt.Errorf("%+v", got)
		}
	})
}

// A fault planted into a clean random history of webhooks is found, for each class.
func TestPlantedFaultsOfWebhooksAreFound(t *testing.T) {
	for class, plant := range map[checker.Class]func(w *world, m history.Message) (planted bool){
		checker.Undelivered: func(w *world, m history.Message) bool {
			calls, letters := len(w.Calls), len(w.Messages)
			w.Calls = slices.DeleteFunc(w.Calls, func(c history.Call) bool {
				return c.Origin == m.EventID &&
					c.Status == 200
			})
			w.Messages = slices.DeleteFunc(w.Messages, func(l history.Message) bool {
				return l.Stream == history.DeadStream && l.Origin == m.EventID
			})
			return len(w.Calls) < calls || len(w.Messages) < letters
		},
		checker.BadWebhook: func(w *world, m history.Message) bool {
			i := slices.IndexFunc(w.Calls, func(c history.Call) bool { return c.Origin == m.EventID })
			if i >= 0 {
				w.Calls[i].Fault = "no matching signature found"
			}
			return i >= 0
		},
		checker.Unlogged: func(w *world, m history.Message) bool {
			i := slices.IndexFunc(w.Calls, func(c history.Call) bool { return c.Origin == m.EventID && c.Status != 0 })
			if i >= 0 {
				again := w.Calls[i]
				again.Status = 429
				w.Calls = append(w.Calls, again)
			}
			return i >= 0
		},
		checker.WrongRecord: func(w *world, m history.Message) bool {
			i := slices.IndexFunc(w.Deliveries, func(r history.Delivery) bool {
				return r.Origin == m.EventID &&
					r.Status != 0
			})
			if i >= 0 {
				w.Deliveries = append(w.Deliveries, w.Deliveries[i])
			}
			return i >= 0
		},
		checker.Repeated: func(w *world, m history.Message) bool {
			i := slices.IndexFunc(w.Calls, func(c history.Call) bool {
				return c.Origin == m.EventID &&
					c.Status == 200
			})
			if i >= 0 {
				again := w.Calls[i]
				again.At, again.Answered = again.At+15_000, again.Answered+15_000
				w.Calls = append(w.Calls, again)
			}
			return i >= 0
		},
		checker.Charged: func(w *world, m history.Message) bool {
			i := slices.IndexFunc(w.Deliveries, func(r history.Delivery) bool {
				return r.Origin == m.EventID && r.Result == history.Retried && (r.Status == 0 || r.Status >= 500)
			})
			if i >= 0 {
				w.Deliveries[i].Result = history.Postponed
			}
			return i >= 0
		},
		checker.WrongEnd: func(w *world, m history.Message) bool {
			w.bury(m, 400_000, "given up by the consumer")
			return true
		},
		checker.HeldUp: func(w *world, m history.Message) bool {
			late := false
			for i, c := range w.Calls {
				if c.Origin == m.EventID && c.Host == steadyHost {
					w.Calls[i].At, w.Calls[i].Answered, late = c.At+3000, c.Answered+3000, true
				}
			}
			return late
		},
	} {
		t.Run(string(class), func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				w, calm := randomHooks(rt)
				if len(calm) == 0 || !plant(w, rapid.SampledFrom(calm).Draw(rt, "timer")) {
					rt.Skip()
				}
				if n := checker.Judge(&w.History).Count(class); n != 1 {
					rt.Errorf("%d found, want 1: %s", n, w.verdicts())
				}
			})
		})
	}
}
