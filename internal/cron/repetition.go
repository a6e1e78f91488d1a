package cron

import "time"

// Repetition is a Spec with a beginning and an end. Times are cut to milliseconds, and the year 9999 is the last one.
type Repetition struct {
	Spec Spec

	// From is the beginning: nothing is due before. The occurrences of an interval are at From + k × interval, with k
	// from 0 on. The zero Time stands for the beginning of 1970.
	From time.Time

	Until   time.Time     // the last possible due time; the zero Time: no end
	Times   int64         // occurrences in all; 0: no end
	CatchUp time.Duration // the greatest age of missed occurrences that still fire; 0: none do
}

// Next returns the first occurrence after an instant, in UTC. It returns false if there is no occurrence up to Until
// or, for a cron expression, none within eight years of that instant.
func (r *Repetition) Next(after time.Time) (time.Time, bool) {
	at, ok := r.Spec.next(r.from(), after.UnixMilli())
	if !ok || !r.Until.IsZero() && at > r.Until.UnixMilli() {
		return time.Time{}, false
	}
	return time.UnixMilli(at).UTC(), true
}

// Between returns the number of occurrences after an instant and before another. The work does not grow with their
// number.
func (r *Repetition) Between(after, before time.Time) int64 {
	end := before.UnixMilli()
	if !r.Until.IsZero() {
		end = min(end, r.Until.UnixMilli()+1)
	}
	return r.Spec.count(r.from(), after.UnixMilli(), end)
}

// Step is the step from one occurrence to the next one.
type Step struct {
	Due     time.Time // the next occurrence, in UTC, which may be in the past; the zero Time if the repetition is over
	Skipped int64     // the number of missed occurrences between the last one and this one that never fire
}

// After returns the step after the occurrence at last, at the present time now. fired is the number of occurrences so
// far, that one included. To begin a repetition, last is the time of its set, and fired is 0. For a moved occurrence,
// last is its original time.
//
// Occurrences between last and now were missed. The ones within CatchUp fire in order, one with each call, and older
// ones are skipped. So a repetition that cannot keep up lags behind by CatchUp at most. If the clock went back, the
// next occurrence still follows last: none fires twice.
//
// The work does not grow with the number of missed occurrences. For an interval it is arithmetic; for a cron expression
// it is a step for each month between last and now, and for each change of the zone's clock.
func (r *Repetition) After(last time.Time, fired int64, now time.Time) Step {
	if r.Times > 0 && fired >= r.Times {
		return Step{}
	}
	oldest := now.Add(-r.CatchUp).UnixMilli()
	since := last.UnixMilli()
	next, ok := r.Next(time.UnixMilli(max(since, oldest-1)))
	end := oldest
	if ok {
		end = next.UnixMilli()
	} else if !r.Until.IsZero() {
		end = min(end, r.Until.UnixMilli()+1)
	}
	return Step{Due: next, Skipped: r.Spec.count(r.from(), since, end)}
}

// from returns From in unix ms.
func (r *Repetition) from() int64 {
	if r.From.IsZero() {
		return 0
	}
	return r.From.UnixMilli()
}
