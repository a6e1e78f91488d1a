package checker_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
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

// random writes a clean history of many keys: a perfect timerd's, of random operations, some with unknown outcomes. It
// returns the messages that must exist, and timers that must not fire.
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
					if open != nil {
						mine = w.claimed(mine, at)
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
				strict, mine = false, w.claimed(mine, at)
				break
			}
		}
		settle()
		certain = append(certain, mine...)
	}
	return w, certain, never
}

// claimed returns the messages of timers that were certainly claimed before a cancellation of due timers: no fault had
// kept them.
func (w *world) claimed(messages []int, cancelled int64) (all []int) {
	for _, i := range messages {
		if cancelled < w.Faults[0].From-began-1000 && w.Messages[i].Due+2300 < began+cancelled {
			all = append(all, i)
		}
	}
	return all
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
			timer := rapid.SampledFrom(never).Draw(rt, "timer")
			if slices.ContainsFunc(w.Ops, func(op history.Op) bool {
				about := op.Due-4 <= timer.Due && timer.Due <= op.Due+4
				return op.Key == timer.Key && op.Invoked > timer.Invoked && (about || op.Outcome == history.Unknown)
			}) {
				rt.Skip() // it may be its replacement
			}
			w.fire(timer)
			if n := checker.Judge(&w.History).Count(checker.Resurrected); n != 1 {
				rt.Errorf("%d found, want 1: %s", n, w.verdicts())
			}
		})
	})
}
