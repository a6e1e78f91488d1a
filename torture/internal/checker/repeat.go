package checker

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// repeated adds the firings of a repeating timer. With catch-up every point of its grid is required, otherwise only the
// first one. If the call took effect too late, it may have ended an earlier repetition too soon.
func (t *timeline) repeated(op history.Op) {
	for due := op.Due; due <= op.Until; due += op.Every {
		f := newFiring(op, due, due+t.hearing.delayed(op.Before, due), must)
		f.follows = due > op.Due
		switch {
		case t.unheard:
			f.free("unknown")
		case !op.CatchUp && f.follows:
			f.free("missed perhaps")
		}
		t.note(f)
	}
}

// occurrences checks that the events of a repeating timer are numbered from 1, by due time or as they came: a
// resume may have shifted one behind the next ones. Nothing is checked if a failover may have lost a settlement, as
// another point of the grid may have been armed then.
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
	byDue := func(a, b history.Message) int { return cmp.Compare(a.Due, b.Due) }
	asTheyCame := func(a, b history.Message) int { return cmp.Or(cmp.Compare(a.Stored, b.Stored), byDue(a, b)) }
	texts := miscounted(slices.SortedFunc(slices.Values(j.messages[key]), byDue))
	if len(miscounted(slices.SortedFunc(slices.Values(j.messages[key]), asTheyCame))) == 0 {
		return
	}
	for _, text := range texts {
		j.fault(Miscounted, key, "%s", text)
	}
}

// miscounted describes the events that are not numbered from 1 on. A dead letter counts only if its event may have been
// published, which it does not say.
func miscounted(messages []history.Message) (texts []string) {
	events, letters := int64(0), int64(0)
	for _, m := range messages {
		if m.Stream == history.DeadStream {
			letters++
			continue
		}
		if events++; m.Occurrence < events || m.Occurrence > events+letters {
			texts = append(texts, fmt.Sprintf("%s is occurrence %d, want %d, or up to %d more by dead letters", m.ID,
				m.Occurrence, events, letters))
		}
	}
	return texts
}
