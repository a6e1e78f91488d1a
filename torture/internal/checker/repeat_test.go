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

// Each occurrence must fire once, at its time and with its number. An end, a hold or a catch-up changes the required
// ones, and a fault excuses only the losses that it can cause.
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
		{"a number beyond the dead letters", nil, func(w *world) {
			w.hold("a", 1000, 6500, history.ResumeDead)
			w.occur(w.repeats(key, history.OK, true), 0, 1, 2, 3)
			for i := range 2 {
				at(letter(&w.Messages[i], "held"), 6550).Occurrence = 1
			}
			at(&w.Messages[2], 7005).Occurrence = 4
			at(&w.Messages[3], 8005).Occurrence = 2
		}, "miscounted"},
		{"numbers that leave out dead letters", nil, func(w *world) {
			w.hold("a", 1000, 6500, history.ResumeDead)
			w.occur(w.repeats(key, history.OK, true), 0, 1, 2, 3)
			for i := range 2 {
				at(letter(&w.Messages[i], "held"), 6550).Occurrence = 1
			}
			w.Messages[2].Occurrence, w.Messages[3].Occurrence = 1, 2
		}, ""},
		{"the first is shifted, and the next ones were missed", nil, func(w *world) {
			by := w.hold("a", 1000, 9000, history.ResumeShift)
			op := w.repeats(key, history.OK, true)
			w.occur(op, 0, 1, 2, 3)
			w.Messages = w.Messages[1:]
			for i := range w.Messages {
				at(&w.Messages[i], 5000+by+int64(i)+10)
			}
			w.emit(key, op.At+by, 1, "p").Occurrence = 1
		}, ""},
		{"the first is shifted, and a next one is lost", nil, func(w *world) {
			by := w.hold("a", 1000, 9000, history.ResumeShift)
			op := w.repeats(key, history.OK, true)
			w.emit(key, op.At+by, 1, "p").Occurrence = 1
			for i := range int64(2) {
				at(w.emit(key, op.At+1000*(i+1), 1, "p"), 5000+by+i+10).Occurrence = i + 2
			}
		}, "lost"},
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
