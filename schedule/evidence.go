package schedule

import (
	"sync"
	"time"

	"github.com/timerd-io/timerd/keys"
)

// maxSilence is the longest time between two readings of the server's clock. In a longer time the clock may have been
// ahead and back.
const maxSilence = 5 * time.Second

// evidence is a node's knowledge of the reasons for absent keys. A key that is gone before its time was deleted if
// nothing else has happened to the server's keys since an audit last looked at all of them: no restart, no eviction, no
// clock that was ahead for a while. It may be used concurrently.
type evidence struct {
	mu sync.Mutex
	// losses is the text of losses.lua as the last complete audit began. It is empty if none has been made since the
	// clock was unread for too long.
	losses  string
	audited slots // of the partitions that this audit looked at
	silent  int   // overlong times without a reading of the clock
	asked   bool  // the last mark was checked, or will not be

	reading        Millis    // the last reading of the clock
	sent, received time.Time // it was made between these local instants; zero before any
	shown          Millis    // the latest time that the clock has shown for certain
	highest        Millis    // the latest time that the clock may have shown; at least shown
}

// witness takes a reading of the server's clock between two local instants. It reports whether the clock was set back
// since the last reading. A late reply proves nothing about the clock, so only the time from the last reply to this
// question counts.
func (e *evidence) witness(at Millis, sent, received time.Time) (setBack bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if received.Before(e.received) {
		return false
	}
	if !e.received.IsZero() {
		least := e.reading.Add(sent.Sub(e.received))
		setBack = at.Add(AheadBy) < least
		if most := received.Sub(e.sent); most > maxSilence {
			e.losses = ""
			e.silent++
		} else {
			// If the clock was set back, it had gone on until then.
			e.shown, e.highest = max(e.shown, least), max(e.highest, e.reading.Add(most))
		}
	}
	e.reading, e.sent, e.received = at, sent, received
	e.shown, e.highest = max(e.shown, at), max(e.highest, at)
	return setBack
}

// latest returns the latest time that the clock may have shown so far.
func (e *evidence) latest() Millis {
	e.mu.Lock()
	defer e.mu.Unlock()
	return max(e.highest, e.reading.Add(time.Since(e.sent)))
}

// isBehind reports whether the clock certainly shows less than before.
func (e *evidence) isBehind() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.reading.Add(time.Since(e.sent)+AheadBy) < e.shown
}

// know notes a complete audit of some slots. losses and silent are as they were at its beginning.
func (e *evidence) know(losses string, audited slots, silent int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if silent == e.silent {
		e.losses, e.audited = losses, audited
	}
}

// keep forgets the slots that are no longer on the server: the fate of their keys elsewhere is unknown.
func (e *evidence) keep(here slots) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.audited {
		e.audited[i] &= here[i]
	}
}

// known returns the text of losses, the slots for which it holds, and the number of overlong times without a reading of
// the clock.
func (e *evidence) known() (losses string, audited slots, silent int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.losses, e.audited, e.silent
}

// ask notes that the last mark was checked.
func (e *evidence) ask() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked = true
}

// wasAsked reports whether ask was called.
func (e *evidence) wasAsked() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.asked
}

// slots is a set of hash slots, a bit for each.
type slots [1 << 14 / 64]uint64

// slotsOf returns the slots of partitions.
func slotsOf(partitions []keys.Partition) slots {
	var s slots
	for _, p := range partitions {
		s.add(p.Slot())
	}
	return s
}

func (s *slots) add(slot int) { s[slot/64] |= 1 << (slot % 64) }

func (s *slots) has(slot int) bool { return s[slot/64]>>(slot%64)&1 == 1 }

// rows returns the first and the last slot of each run of consecutive ones.
func (s *slots) rows() [][2]int {
	var rows [][2]int
	for slot := range len(s) * 64 {
		switch n := len(rows); {
		case !s.has(slot):
		case n > 0 && rows[n-1][1] == slot-1:
			rows[n-1][1] = slot
		default:
			rows = append(rows, [2]int{slot, slot})
		}
	}
	return rows
}

// slotsIn returns the slots in rows, without impossible ones.
func slotsIn(rows [][2]int) slots {
	var s slots
	for _, row := range rows {
		for slot := max(row[0], 0); slot <= row[1] && slot < len(s)*64; slot++ {
			s.add(slot)
		}
	}
	return s
}
