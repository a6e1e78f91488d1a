package cron

import (
	"math/bits"
	"time"
)

// Times here are on the clock of some zone: seconds since the beginning of 1970 there.
const secondsPerDay = 24 * 60 * 60

// month is a month of the calendar, counted from January of the year 0.
type month int

// monthOf returns the month of a day; days count from 1970.
func monthOf(day int64) month {
	year, m, _ := time.Unix(day*secondsPerDay, 0).UTC().Date()
	return month(year*12 + int(m) - 1)
}

// first returns the month's first day.
func (m month) first() int64 {
	return time.Date(0, time.Month(m)+1, 1, 0, 0, 0, 0, time.UTC).Unix() / secondsPerDay
}

// days returns the matching days of a month; bit 1 is the first day.
func (f *fields) days(m month) uint64 {
	if !has(f.month, int(m)%12+1) {
		return 0
	}
	first, next := m.first(), (m + 1).first()
	length := int(next - first)
	byDate := f.day
	if f.lastDay {
		byDate |= 1 << length
	}
	weekday := int(((first+4)%7 + 7) % 7) // of the month's first day; 1970 began on a Thursday
	var byWeekday uint64
	for i, weeks := range f.weekdays {
		byWeekday |= weeks << (1 + (i-weekday+7)%7)
	}
	days := byDate & byWeekday
	if f.eitherDay {
		days = byDate | byWeekday
	}
	return days & below(length+1) &^ 1
}

// next returns the first matching time not before from, and false if there is none up to last.
func (f *fields) next(from, last int64) (int64, bool) {
	day, clock := split(from)
	clock, ok := f.clock(clock)
	if !ok {
		day++
		clock, _ = f.clock(0) // no set of a clock is empty
	}
	for m := monthOf(day); ; m++ {
		first := m.first()
		if first*secondsPerDay > last {
			return 0, false
		}
		date := atLeast(f.days(m), int(max(day-first, 0))+1)
		if date == none {
			continue
		}
		if found := first + int64(date) - 1; found > day {
			day = found
			clock, _ = f.clock(0)
		}
		at := day*secondsPerDay + clock
		return at, at <= last
	}
}

// count returns the number of matching times not before from, and before to. It looks at each month once.
func (f *fields) count(from, to int64) int64 {
	if from >= to {
		return 0
	}
	firstDay, firstClock := split(from)
	lastDay, lastClock := split(to)
	perDay := f.clocksBefore(secondsPerDay)
	var n int64
	for m := monthOf(firstDay); m.first() <= lastDay; m++ {
		days, start := f.days(m), m.first()
		date := func(day int64) int { return int(min(max(day-start, -1), 31)) + 1 }
		n += perDay * int64(bits.OnesCount64(days&below(date(lastDay))&^below(date(firstDay))))
		if has(days, date(firstDay)) {
			n -= f.clocksBefore(firstClock)
		}
		if has(days, date(lastDay)) {
			n += f.clocksBefore(lastClock)
		}
	}
	return n
}

// clock returns the first matching time of a day not before from, and false if there is none.
func (f *fields) clock(from int64) (int64, bool) {
	hour, minute, second := int(from/3600), int(from/60%60), int(from%60)
	if second = atLeast(f.second, second); second == none {
		second = atLeast(f.second, 0)
		minute++
	}
	if m := atLeast(f.minute, minute); m != minute {
		second = atLeast(f.second, 0)
		if minute = m; m == none {
			minute = atLeast(f.minute, 0)
			hour++
		}
	}
	h := atLeast(f.hour, hour)
	if h == none {
		return 0, false
	}
	if h > hour {
		minute, second = atLeast(f.minute, 0), atLeast(f.second, 0)
	}
	return int64(h*3600 + minute*60 + second), true
}

// clocksBefore returns the number of matching times of a day before one.
func (f *fields) clocksBefore(clock int64) int64 {
	hour, minute, second := int(clock/3600), int(clock/60%60), int(clock%60)
	perMinute := bits.OnesCount64(f.second)
	perHour := bits.OnesCount64(f.minute) * perMinute
	n := bits.OnesCount64(f.hour&below(hour)) * perHour
	if has(f.hour, hour) {
		n += bits.OnesCount64(f.minute&below(minute)) * perMinute
		if has(f.minute, minute) {
			n += bits.OnesCount64(f.second & below(second))
		}
	}
	return int64(n)
}

// split returns the day of a time, and the seconds since its beginning.
func split(local int64) (day, clock int64) {
	day = local / secondsPerDay
	if clock = local % secondsPerDay; clock < 0 {
		day--
		clock += secondsPerDay
	}
	return day, clock
}

// none is the result of atLeast if the set has no such number. It is greater than any number of a set.
const none = 64

// atLeast returns the least number in a set that is not below a given one, or none.
func atLeast(set uint64, from int) int {
	return min(from+bits.TrailingZeros64(set>>from), none)
}

// has reports whether a set has a number. No set has one outside 0 to 63.
func has(set uint64, n int) bool { return n >= 0 && set>>n&1 == 1 }

// below returns the set of all numbers below one of at most 63.
func below(n int) uint64 { return 1<<max(n, 0) - 1 }
