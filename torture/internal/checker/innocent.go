package checker

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/torture/internal/history"
)

// The limits, in ms, of the lateness of innocent timers. Unavoidable waits do not count: stalls of the machine, and the
// time in which NATS stores other events, because a crowd of firings is real work.
const (
	// innocentMost limits each timer's lateness.
	innocentMost = 2000
	// innocentP99 limits the 99th percentile, on top of innocentNoise times the percentile without faults.
	innocentP99   = 100
	innocentNoise = 3
	// innocentFew is the number of timers below which the percentile is not judged.
	innocentFew = 500
	// storing is the time to store an event, with a sync of the disk for each.
	storing = 1
)

// Innocents has the lateness, in ms and sorted, of timers that no fault concerned from the first operation on their key
// until they were stored. A repeating timer counts with its first occurrence.
type Innocents struct {
	Calm   []int64            // while there was no fault at all
	Beside map[string][]int64 // while there were faults that concerned others, by the kind of the last one
	// The same without unavoidable waits.
	CalmExcess, BesideExcess []int64
}

// concerns reports whether a fault concerns the timers of a key: by its app, and by its slot.
func concerns(f history.Fault, key string) bool {
	if len(f.Apps) > 0 && !slices.Contains(f.Apps, history.App(key)) {
		return false
	}
	if len(f.Slots) == 0 {
		return true
	}
	slot := keys.Slot(key)
	return slices.ContainsFunc(f.Slots, func(s history.Slots) bool { return s.From <= slot && slot <= s.To })
}

// during reports whether a fault, or its aftermath, overlaps a time span.
func (j *judge) during(f history.Fault, from, to int64) bool {
	return f.From-before <= to && from <= cmp.Or(f.Ready, j.h.End.At)+after
}

// neighbour notes the lateness of a required firing, if the timer is innocent. A repeating timer waits for the
// acknowledgement of its last event, and any crowd delays that. So its later occurrences are judged only beside faults
// of other slots.
func (j *judge) neighbour(key string, m history.Message) {
	ops := j.ops[key]
	if m.Stream != history.FiredStream || len(ops) == 0 {
		return
	}
	all, later := &j.report.Innocents, m.Occurrence > 1
	if later {
		all = &j.report.Repeating
	}
	beside, from := "", int64(0)
	for _, f := range j.h.Faults {
		switch {
		case concerns(f, key):
			if j.during(f, ops[0].Invoked, m.Stored) {
				return
			}
		case later && len(f.Slots) == 0:
		case j.during(f, m.Due, m.Due) && f.From >= from:
			beside, from = f.Kind, f.From
		}
	}
	late := m.Time - m.Due
	excess := max(0, late-j.stalled(m.Due, m.Time)-storing*j.stored(m.Due, m.Time))
	if beside == "" {
		all.Calm, all.CalmExcess = append(all.Calm, late), append(all.CalmExcess, excess)
		return
	}
	all.Beside[beside], all.BesideExcess = append(all.Beside[beside], late), append(all.BesideExcess, excess)
	if excess > innocentMost {
		j.fault(Innocent, key, "%s fired %d ms late, %d of them without need, beside %s, which concerns others",
			m.ID, late, excess, beside)
	}
}

// stored returns the number of messages that NATS stored between two times.
func (j *judge) stored(from, to int64) int64 {
	if j.times == nil {
		for _, m := range j.h.Messages {
			j.times = append(j.times, m.Stored)
		}
		for _, r := range j.h.Deliveries {
			j.times = append(j.times, r.Stored)
		}
		slices.Sort(j.times)
	}
	first, _ := slices.BinarySearch(j.times, from)
	last, _ := slices.BinarySearch(j.times, to)
	return int64(last - first)
}

// stalled returns the time for which the machine was too busy between two times.
func (j *judge) stalled(from, to int64) (all int64) {
	for _, s := range j.h.Stalls {
		all += max(0, min(to, s.To)-max(from, s.From))
	}
	return all
}

// innocents judges the lateness of all innocent timers together. which names them in a violation: timers, or
// occurrences.
func (j *judge) innocents(all *Innocents, which string) {
	slices.Sort(all.Calm)
	slices.Sort(all.CalmExcess)
	slices.Sort(all.BesideExcess)
	for _, late := range all.Beside {
		slices.Sort(late)
	}
	bound := innocentP99 + innocentNoise*Percentile(all.CalmExcess, 0.99)
	if late := Percentile(all.BesideExcess, 0.99); len(all.BesideExcess) >= innocentFew && late > bound {
		j.report.Violations = append(j.report.Violations, Violation{Class: Innocent, Key: "all", Text: fmt.Sprintf(
			"of %d %s beside faults that concern others, the 99th of 100 fired %d ms later than it had to, at most "+
				"%d is allowed",
			len(all.BesideExcess), which, late, bound)})
	}
}

// Percentile returns the value that a part of the sorted values does not exceed; 0 if there are none.
func Percentile(sorted []int64, part float64) int64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)]
}
