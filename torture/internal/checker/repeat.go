package checker

import (
	"cmp"
	"slices"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// repeated notes the firings that a timer that repeats asks for: each point of its grid where what is missed is made up for, and
// else the first one for certain. A call that took effect too late may have cut off one that was made again.
func (t *timeline) repeated(op history.Op) {
	for due := op.Due; due <= op.Until; due += op.Every {
		f := newFiring(op, due, due+t.hearing.delayed(op.Before, due), must)
		switch {
		case t.unheard:
			f.free("unknown")
		case !op.CatchUp && due > op.Due:
			f.free("missed perhaps")
		}
		t.note(f)
	}
}

// occurrences checks that the firings of a timer that repeats are counted from 1 on, in the order of their due times. Where a
// failover may have lost what a settlement armed, and another point of the grid was armed then, they need not be.
func (j *judge) occurrences(key string) {
	var repeat *history.Op
	for i, op := range j.ops[key] {
		if op.Kind != history.Repeat || op.Outcome == history.Unknown {
			return
		}
		if op.Outcome == history.OK {
			repeat = &j.ops[key][i]
		}
	}
	if repeat == nil || !repeat.CatchUp && slices.ContainsFunc(j.h.Faults, func(f history.Fault) bool { return f.Effect == history.Failover }) {
		return
	}
	fired := slices.Clone(j.messages[key])
	slices.SortFunc(fired, func(a, b history.Message) int { return cmp.Compare(a.Due, b.Due) })
	for i, m := range fired {
		if m.Occurrence != int64(i)+1 {
			j.fault(Miscounted, key, "%s is occurrence %d, want %d", m.ID, m.Occurrence, i+1)
		}
	}
}
