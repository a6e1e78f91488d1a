package checker

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/torture/internal/history"
)

// By how many ms innocent timers may exceed what they had to wait: while the machine stalled, and for the events that
// NATS stored meanwhile, because a crowd that fires is work that somebody has to do.
const (
	// innocentMost bounds each.
	innocentMost = 2000
	// innocentP99 bounds the 99th of a hundred, on top of innocentNoise times what it is in calm.
	innocentP99   = 100
	innocentNoise = 3
	// innocentFew are too few to tell the 99th of a hundred.
	innocentFew = 500
	// storing is what an event takes: with a sync of the disk for each.
	storing = 1
)

// Innocents is how late, in ms, those timers were published that no fault concerned from the first operation on their key
// until they were stored. They are sorted. Of timers that repeat, the first occurrence is one of them.
type Innocents struct {
	Calm   []int64            // while there was no fault at all
	Beside map[string][]int64 // while there were faults that concerned others, by the kind of the last one
	// The same without what they had to wait.
	CalmExcess, BesideExcess []int64
}

// concerns tells whether a fault concerns the timers of a key: by its app, and by its slot.
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

// during tells whether a fault, or what it left behind, overlaps a time.
func (j *judge) during(f history.Fault, from, to int64) bool {
	return f.From-before <= to && from <= cmp.Or(f.Ready, j.h.End.At)+after
}

// neighbour notes how late a firing was that had to come, if it is innocent. A timer that repeats waits for the acknowledgement of
// its last event, which any crowd delays: its later occurrences are judged beside faults of other slots alone.
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

// stored returns how many messages NATS stored from one time to another.
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

// stalled returns for how long the machine was too busy from one time to another.
func (j *judge) stalled(from, to int64) (all int64) {
	for _, s := range j.h.Stalls {
		all += max(0, min(to, s.To)-max(from, s.From))
	}
	return all
}

// innocents judges how late the innocent were all together, which are timers or occurrences.
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
			"of %d %s beside faults that concern others, the 99th of 100 fired %d ms later than it had to, at most %d is allowed",
			len(all.BesideExcess), which, late, bound)})
	}
}

// Percentile returns the value below which a part of them are, 0 if there are none.
func Percentile(sorted []int64, part float64) int64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)]
}
