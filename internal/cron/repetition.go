package cron

import "time"

// Repetition is a Spec with where it begins and ends. Times count by the millisecond that they lie in, and the year 9999
// is the last one.
type Repetition struct {
	Spec Spec

	// From is where it begins: nothing is due before. The occurrences of an interval are at From + k × interval, with k
	// from 0 on. The zero Time stands for the beginning of 1970.
	From time.Time

	Until   time.Time     // the last moment at which an occurrence may be due; the zero Time: no end
	Times   int64         // how many fire in all; 0: no end
	CatchUp time.Duration // how old missed occurrences may be that still fire; 0: none is made up for
}

// Next returns the first occurrence after an instant, in UTC. It returns false if there is none up to Until, or, of a cron
// expression, none in the eight years after that instant.
func (r *Repetition) Next(after time.Time) (time.Time, bool) {
	at, ok := r.Spec.next(r.from(), after.UnixMilli())
	if !ok || !r.Until.IsZero() && at > r.Until.UnixMilli() {
		return time.Time{}, false
	}
	return time.UnixMilli(at).UTC(), true
}

// Between returns how many occurrences lie after an instant and before another. The work does not grow with their number.
func (r *Repetition) Between(after, before time.Time) int64 {
	end := before.UnixMilli()
	if !r.Until.IsZero() {
		end = min(end, r.Until.UnixMilli()+1)
	}
	return r.Spec.count(r.from(), after.UnixMilli(), end)
}

// Step is what follows an occurrence.
type Step struct {
	Due     time.Time // the next occurrence, in UTC, which may be in the past; the zero Time if the repetition is over
	Skipped int64     // how many were missed and never fire, of those between the last occurrence and this one
}

// After says what follows the occurrence of the time last, with which so many have fired, when it is now. To begin a
// repetition, last is when it was set, and none has fired. Of an occurrence that somebody moved, last is the time that it
// had of its own.
//
// What lies between last and now was missed. Of this the part that is no older than CatchUp fires in order, an occurrence
// with each call, and what is older is skipped. So a repetition that cannot keep up lags behind by CatchUp at most. If
// the clock went back, what follows last is due all the same: no occurrence fires twice.
//
// The work does not grow with the number of occurrences that were missed. Of an interval it is arithmetic, of a cron
// expression it is a step for each month between last and now, and for each change of the zone's clock.
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
