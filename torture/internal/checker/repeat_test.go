package checker_test

import (
	"testing"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// repeats sets a timer that repeats: four points of a grid, the first after 5 s.
func (w *world) repeats(key string, outcome history.Outcome, catchUp bool) history.Op {
	const first = began + 5000
	op := history.Op{
		Kind: history.Repeat, Key: key, Payload: "p", Attempt: 1, Outcome: outcome, At: first, Every: 1000,
		Until: first + 3500, CatchUp: catchUp,
	}
	if outcome == history.OK {
		op.Due = first
	}
	return w.do(0, op)
}

// occur has points of the grid fire, numbered from 1 on.
func (w *world) occur(op history.Op, points ...int64) {
	for i, point := range points {
		w.emit(op.Key, op.At+point*op.Every, 1, "p").Occurrence = int64(i) + 1
	}
}

func TestVerdictsOnRepetitions(t *testing.T) {
	const key = "a:b:c:1"
	failover := []history.Fault{deaf(history.Failover, 6000, 9000)}
	for _, c := range []struct {
		name   string
		faults []history.Fault
		play   func(w *world)
		want   string
	}{
		{"each point", nil, func(w *world) { w.occur(w.repeats(key, history.OK, true), 0, 1, 2, 3) }, ""},
		{"one is lost", nil, func(w *world) { w.occur(w.repeats(key, history.OK, true), 0, 1, 3) }, "lost"},
		{"one is lost, a failover is no excuse", failover, func(w *world) {
			w.occur(w.repeats(key, history.OK, true), 0, 1, 3)
		}, "lost"},
		{"one is skipped", nil, func(w *world) { w.occur(w.repeats(key, history.OK, false), 0, 1, 3) }, ""},
		{"the last ones are skipped", nil, func(w *world) { w.occur(w.repeats(key, history.OK, false), 0) }, ""},
		{"the first is skipped", nil, func(w *world) { w.occur(w.repeats(key, history.OK, false), 1, 2, 3) }, "lost"},
		{"one is off the grid", nil, func(w *world) {
			op := w.repeats(key, history.OK, false)
			w.occur(op, 0, 1)
			w.emit(key, op.At+2500, 1, "p").Occurrence = 3
		}, "duplicate"},
		{"one after the end", nil, func(w *world) { w.occur(w.repeats(key, history.OK, true), 0, 1, 2, 3, 4) },
			"duplicate"},
		{"one comes under two ids", nil, func(w *world) {
			op := w.repeats(key, history.OK, true)
			w.occur(op, 0, 1, 2, 3)
			w.emit(key, op.At+3001, 1, "p").Occurrence = 5
		}, "duplicate"},
		{"a wrong number", nil, func(w *world) {
			w.occur(w.repeats(key, history.OK, false), 0, 2)
			w.Messages[1].Occurrence = 3
		}, "miscounted"},
		{"a number twice after a failover", failover, func(w *world) {
			w.occur(w.repeats(key, history.OK, false), 0, 1, 3)
			w.Messages[2].Occurrence = 2
		}, ""},
		{"unknown, and fires", nil, func(w *world) { w.occur(w.repeats(key, history.Unknown, true), 0, 1, 2, 3) }, ""},
		{"unknown, and does not", nil, func(w *world) { w.repeats(key, history.Unknown, true) }, ""},
		{"made again, and cut off", nil, func(w *world) {
			w.repeats(key, history.Unknown, true)
			w.occur(w.repeats(key, history.OK, true), 0, 2, 3)
		}, ""},
	} {
		w := newWorld(c.faults...)
		c.play(w)
		if got := w.verdicts(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
