// Package cron says when a timer that repeats is due. A [Spec] is an interval or a cron expression in a time zone; a
// [Repetition] adds where it begins and ends, and what becomes of occurrences that were missed. Nothing here reads a
// clock or keeps a state: the caller says what time it is. All values may be used by several goroutines.
//
// # Cron expressions
//
// Five fields are minute, hour, day of month, month and day of week; six begin with the second. A field is * or a list
// of numbers, ranges (1-5) and steps (*/15, 10-40/10, 5/10 from 5 on). Months have names from JAN to DEC, days of the
// week from SUN to SAT; 0 and 7 are both Sunday. In the day of month L is the last day; in the day of week 5#2 is the
// second Friday. Where both days are restricted, either is enough. @hourly, @daily, @weekly, @monthly and @yearly stand
// for whole expressions, as do @midnight and @annually.
//
// # Clocks that are changed
//
// A local time that a clock skips is due at the moment of the jump, and several within one jump are one occurrence. A
// local time that a clock shows twice is due the first time. In other words: a local time is due as soon as the zone's
// clock shows it or a later one. Where the hour is * or */n, the repetition simply goes on: each instant is due at which
// the clock shows a time that the expression names.
//
// What the clocks do is known from the machine's own database of time zones, as it may be the newer one, or else from the
// one that Go brings along.
package cron
