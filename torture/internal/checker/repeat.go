package checker

import (
	"cmp"
	"slices"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// repeated adds the firings of a repeating timer. With catch-up every point of its grid is required, otherwise only the
// first one. If the call took effect too late, it may have ended an earlier repetition too soon.
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

// occurrences checks that the firings of a repeating timer are numbered from 1, by due time. It checks nothing if a
// failover may have lost a settlement, because then another point of the grid may have been armed.
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
	if repeat == nil || !repeat.CatchUp && slices.ContainsFunc(j.h.Faults,
		func(f history.Fault) bool { return f.Effect == history.Failover }) {
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
