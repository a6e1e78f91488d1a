package schedule

import (
	"math"
)

// Score is the score of a firing in the index: the end of its claim, or a value with another meaning; see
// lua/lib/scores.lua.
type Score float64

// heldScore is the distance of a held timer's score from its due time: more than any lease, and small enough for an
// exact sum.
const heldScore Millis = 1 << 52

// Fractions of a millisecond in the score of an unclaimed firing: the reason for its wait.
const (
	partFreed   = 0.25 // a resume has released it, or it had a pause before: no hold holds it any more
	partPaused  = 0.5  // it was given back with a pause
	partPerhaps = 0.75 // it was given back, and may have been published
)

// Held returns the due time of a held timer. ok is false if it is not held.
func (s Score) Held() (due Millis, ok bool) { return Millis(s) - heldScore, s >= Score(heldScore) }

func (s Score) fraction() float64 { return float64(s) - math.Trunc(float64(s)) }

// IsFree reports whether no timerd has claimed the firing and none can have published it, as is_free in scores.lua
// does. A held firing is free.
func (s Score) IsFree() bool {
	f := s.fraction()
	return s == 0 || s >= Score(heldScore) || f == partFreed || f == partPaused
}

// MayBePublished reports whether the firing was given back by a timerd that may have published it.
func (s Score) MayBePublished() bool { return s.fraction() == partPerhaps }
