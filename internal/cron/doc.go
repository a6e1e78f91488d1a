// Package cron computes the due times of repeating timers. A [Spec] is an interval or a cron expression in a time zone;
// a [Repetition] adds its beginning and end, and the treatment of missed occurrences. Nothing here reads a clock or
// keeps a state: the caller passes the time. All values may be used by several goroutines.
//
// # Cron expressions
//
// Five fields are minute, hour, day of month, month and day of week; six begin with the second. A field is * or a list
// of numbers, ranges (1-5) and steps (*/15, 10-40/10, 5/10 from 5 on). Months have names from JAN to DEC, days of the
// week from SUN to SAT; 0 and 7 are both Sunday. In the day of month L is the last day; in the day of week 5#2 is the
// second Friday. If both days are restricted, either is enough. @hourly, @daily, @weekly, @monthly and @yearly stand
// for whole expressions, as do @midnight and @annually.
//
// # Clocks that are changed
//
// A local time that a clock skips is due at the moment of the jump, and several within one jump are one occurrence. A
// local time that a clock shows twice is due the first time. In other words: a local time is due as soon as the zone's
// clock shows it or a later one. If the hour is * or */n, the repetition simply goes on: it is due at each instant at
// which the clock shows a matching time.
//
// The rules of clocks come from the machine's own database of time zones, since it may be newer, or else from Go's.
package cron
