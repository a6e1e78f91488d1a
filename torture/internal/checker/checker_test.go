package checker_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/timerd-io/timerd/torture/internal/checker"
	"github.com/timerd-io/timerd/torture/internal/history"
)

func TestMain(m *testing.M) {
	if err := flag.Set("rapid.nofailfile", "true"); err != nil {
		panic(err)
	}
	os.Exit(m.Run()) //nolint:forbidigo // as the testing package has it
}

// began is when all histories of these tests begin.
const began = 1_800_000_000_000

// world is a perfect timerd: it writes the history of what is asked of it.
type world struct {
	history.History
	seq int
}

func newWorld(faults ...history.Fault) *world {
	w := &world{}
	w.Run = history.Run{Shape: "standalone", Timerds: 1, Began: began}
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
		{"a plain timer that outlives a deaf time may not", []history.Fault{deaf(history.Deafens, 0, 9000)}, func(w *world) {
			w.set(100, history.Set, key, "p", 15_000)
		}, "lost"},
		{"an outage of NATS excuses nothing", []history.Fault{deaf(history.Delays, 0, 9000)}, func(w *world) {
			w.set(100, history.Set, key, "p", 5000)
		}, "lost"},
		{"an unheard replacement ran out, and what is known of the key fires", []history.Fault{deaf(history.Deafens, 500, 9000)}, func(w *world) {
			op := w.set(0, history.Set, key, "p", 8000)
			w.set(600, history.Set, key, "q", 400)
			w.emit(key, op.Due-1000, 1, "p").Trigger = "expired"
		}, ""},
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

// random writes a clean history of many keys: what a perfect timerd would make of
// random operations, some of which are unknown to their producers. It returns the
// messages that have to be there, and timers that must not fire.
func random(rt *rapid.T) (w *world, certain []int, never []history.Op) {
	w = newWorld(deaf(history.Deafens, 20_000, 30_000))
	for key := range rapid.IntRange(3, 12).Draw(rt, "keys") {
		name := fmt.Sprintf("a:b:c:%d", key)
		var at int64
		var open *history.Op
		strict := false
		var mine []int
		settle := func() {
			if open != nil {
				w.fire(*open)
				if strict {
					mine = append(mine, len(w.Messages)-1)
				}
			}
			open = nil
		}
		for n := range rapid.IntRange(1, 6).Draw(rt, "ops") {
			at += int64(rapid.IntRange(1600, 9000).Draw(rt, "wait"))
			if open != nil && open.Due < began+at {
				settle()
			} else if open != nil && open.Due <= began+at+2000 {
				at = open.Due - began + 1000
				settle()
			}
			ttl := int64(rapid.IntRange(2000, 12_000).Draw(rt, "ttl"))
			kind := rapid.SampledFrom([]history.Kind{
				history.Timer, history.Timer, history.Set, history.Hash, history.Cancel, history.Expire,
			}).Draw(rt, "kind")
			unknown := rapid.IntRange(0, 11).Draw(rt, "unknown") == 0
			happens := !unknown || rapid.Bool().Draw(rt, "happens")
			quiet := at+13_000 < 20_000 || at > 30_000
			op := history.Op{Kind: kind, Key: name, Attempt: 1}
			switch kind {
			case history.Cancel:
				op.Reply = "unknown"
				if open != nil {
					op.Reply = "cancelled"
				}
			case history.Expire:
				op.TTL, op.Reply = ttl, "0"
				if open != nil {
					op.Reply = "1"
				}
			default:
				op.TTL, op.Payload = ttl, fmt.Sprintf("%d-%d", key, n)
			}
			if unknown {
				op.Outcome, op.Reply = history.Unknown, ""
			}
			if kind == history.Expire && open == nil {
				op.TTL = 0
			}
			op = w.do(at, op)
			if op.Due == 0 && op.TTL != 0 {
				op.Due = op.Invoked + op.TTL
			}
			if happens {
				if open != nil && !unknown && quiet && strict {
					never = append(never, *open)
				}
				switch {
				case kind == history.Cancel:
					if open != nil && !strict && len(mine) > 0 {
						mine = mine[:len(mine)-1] // or this one, if timerd did not hear of the other
					}
					open = nil
				case kind != history.Expire:
					open, strict = &op, kind == history.Timer || quiet
				case open != nil:
					op.Payload = open.Payload
					open, strict = &op, quiet
				}
			}
			if unknown {
				strict, mine = false, nil // a cancellation may have met what is due and not yet claimed
				break
			}
		}
		settle()
		certain = append(certain, mine...)
	}
	return w, certain, never
}

func TestCleanHistoriesPass(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w, certain, _ := random(rt)
		r := checker.Judge(&w.History)
		for _, v := range r.Violations {
			rt.Errorf("%s: %s\n%s", v.Class, v.Text, strings.Join(v.Tale, "\n"))
		}
		if r.Strict < len(certain) {
			rt.Errorf("%d judged strictly, want at least %d", r.Strict, len(certain))
		}
	})
}

func TestPlantedFaultsAreFound(t *testing.T) {
	for class, plant := range map[checker.Class]func(rt *rapid.T, w *world, i int){
		checker.Lost: func(_ *rapid.T, w *world, i int) {
			w.Messages = append(w.Messages[:i], w.Messages[i+1:]...)
		},
		checker.Duplicate: func(_ *rapid.T, w *world, i int) {
			w.Messages = append(w.Messages, w.Messages[i])
		},
		checker.Early: func(rt *rapid.T, w *world, i int) {
			early := w.Messages[i].Due - int64(rapid.IntRange(1, 5000).Draw(rt, "early"))
			if rapid.Bool().Draw(rt, "stored") {
				w.Messages[i].Stored = early
			} else {
				w.Messages[i].Time = early
			}
		},
		checker.WrongPayload: func(_ *rapid.T, w *world, i int) { w.Messages[i].Payload = "somebody else's" },
		checker.WrongAttempt: func(rt *rapid.T, w *world, i int) {
			w.Messages[i].Attempt += rapid.IntRange(1, 5).Draw(rt, "attempts")
		},
	} {
		t.Run(string(class), func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				w, certain, _ := random(rt)
				if len(certain) == 0 {
					rt.Skip()
				}
				plant(rt, w, rapid.SampledFrom(certain).Draw(rt, "message"))
				if n := checker.Judge(&w.History).Count(class); n != 1 {
					rt.Errorf("%d found, want 1: %s", n, w.verdicts())
				}
			})
		})
	}
	t.Run(string(checker.Resurrected), func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			w, _, never := random(rt)
			if len(never) == 0 {
				rt.Skip()
			}
			w.fire(rapid.SampledFrom(never).Draw(rt, "timer"))
			if n := checker.Judge(&w.History).Count(checker.Resurrected); n != 1 {
				rt.Errorf("%d found, want 1: %s", n, w.verdicts())
			}
		})
	})
}
