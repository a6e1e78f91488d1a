package cron_test

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// brute finds the times of a cron expression as one would with a clock and the contract in hand: it looks at every
// minute, or every second, and asks Go for the clock's time. It shares nothing with the package.
type brute struct {
	location                    *time.Location
	step                        time.Duration
	second, minute, hour, month []bool
	day, weekday                string
	either, goesOn              bool
}

func newBrute(expression string, location *time.Location) *brute {
	whole := map[string]string{
		"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
		"@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
	}
	if text, ok := whole[strings.ToLower(expression)]; ok {
		expression = text
	}
	words := strings.Fields(strings.ToUpper(expression))
	b := &brute{location: location, step: time.Second}
	if len(words) == 5 {
		b.step = time.Minute
		words = slices.Insert(words, 0, "0")
	}
	table := func(word string, low, high int, names string) (is []bool) {
		for n := range high + 1 {
			is = append(is, n >= low && named(word, n, low, high, names))
		}
		return is
	}
	b.second, b.minute, b.hour = table(words[0], 0, 59, ""), table(words[1], 0, 59, ""), table(words[2], 0, 23, "")
	b.day, b.month, b.weekday = words[3], table(words[4], 1, 12, "JANFEBMARAPRMAYJUNJULAUGSEPOCTNOVDEC"), words[5]
	all := func(word string) bool { return word == "*" || word == "*/1" }
	b.either = !all(b.day) && !all(b.weekday)
	b.goesOn = words[2][0] == '*' && !strings.Contains(words[2], ",")
	return b
}

// named reports whether a field names a number.
func named(word string, n, low, high int, names string) bool {
	for item := range strings.SplitSeq(word, ",") {
		if item == "L" || strings.Contains(item, "#") {
			continue
		}
		number := func(text string) int {
			if at := strings.Index(names, text); at >= 0 {
				return at/3 + low
			}
			value, err := strconv.Atoi(text)
			if err != nil {
				panic(err)
			}
			return value
		}
		span, step, stepped := strings.Cut(item, "/")
		from, to, by := low, high, 1
		if stepped {
			by = number(step)
		}
		if span != "*" {
			first, last, isRange := strings.Cut(span, "-")
			from = number(first)
			if isRange {
				to = number(last)
			} else if !stepped {
				to = from
			}
			if to == 0 && from > 0 {
				to = 7 // Sunday
			}
		}
		if n >= from && n <= to && (n-from)%by == 0 {
			return true
		}
	}
	return false
}

// matches reports whether the expression matches a clock's time. The clock is given as a time in UTC.
func (b *brute) matches(shown time.Time) bool {
	hour, minute, second := shown.Clock()
	if !b.second[second] || !b.minute[minute] || !b.hour[hour] || !b.month[shown.Month()] {
		return false
	}
	day, weekday := shown.Day(), int(shown.Weekday())
	byDay := named(b.day, day, 1, 31, "") || slices.Contains(strings.Split(b.day, ","), "L") &&
		shown.AddDate(0, 0, 1).Day() == 1
	const days = "SUNMONTUEWEDTHUFRISAT"
	byWeekday := named(b.weekday, weekday, 0, 6, days) || weekday == 0 &&
		named(strings.ReplaceAll(b.weekday, "*", "0"), 7, 0, 6, days)
	for item := range strings.SplitSeq(b.weekday, ",") {
		if name, which, ok := strings.Cut(item, "#"); ok {
			n, _ := strconv.Atoi(which)
			byWeekday = byWeekday || (day+6)/7 == n && (named(name, weekday, 0, 6, days) || weekday == 0 && name == "7")
		}
	}
	if b.either {
		return byDay || byWeekday
	}
	return byDay && byWeekday
}

// goneBack is longer than any clock in these tests is set back at once.
const goneBack = 3 * time.Hour

// next returns the first few times after an instant, up to another one.
func (b *brute) next(after, until time.Time, most int) (found []time.Time) {
	shown := func(at time.Time) time.Time {
		_, offset := at.In(b.location).Zone()
		return at.UTC().Add(time.Duration(offset) * time.Second)
	}
	start := after.UTC().Truncate(b.step).Add(-goneBack)
	last := shown(start)
	seen := map[int64]bool{}
	for at := start.Add(b.step); !at.After(until) && len(found) < most; at = at.Add(b.step) {
		clock := shown(at)
		due := b.matches(clock)
		if !b.goesOn {
			due = due && !seen[clock.Unix()]
			for skipped := last.Add(b.step); skipped.Before(clock); skipped = skipped.Add(b.step) {
				due = due || b.matches(skipped)
			}
			seen[clock.Unix()] = true
			delete(seen, clock.Add(-2*goneBack).Unix())
		}
		last = clock
		if due && at.After(after) {
			found = append(found, at)
		}
	}
	return found
}
