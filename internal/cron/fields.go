package cron

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The grammar exists twice: schedule/lua/lib/cron_fields.lua refuses the same expressions, and the cases of
// testdata/expressions.jsonl run through both.

// fields are the times of an expression in any zone. Each set has a bit for each number.
type fields struct {
	second, minute, hour, month uint64

	day     uint64 // of the month
	lastDay bool
	// weekdays has for each day of the week, from Sunday on, the matching ones of a month: bit 0 is the first one, bit
	// 7 the second.
	weekdays [7]uint64
	// eitherDay: day and weekdays are both restricted, and one of them is enough.
	eitherDay bool
	// goesOn: the hour is * or */n.
	goesOn bool
}

// everyWeek has the bits of weekdays for every week of a month.
const everyWeek = 1 | 1<<7 | 1<<14 | 1<<21 | 1<<28

// field is one field's grammar.
type field struct {
	name      string
	low, high int      // the bounds of its numbers
	last      int      // of *, and of a step without an end
	names     []string // of the numbers from low on
	also      string   // further allowed forms, for errors
}

func secondField() field { return field{name: "second", high: 59, last: 59} }
func minuteField() field { return field{name: "minute", high: 59, last: 59} }
func hourField() field   { return field{name: "hour", high: 23, last: 23} }
func dayField() field {
	return field{name: "day of month", low: 1, high: 31, last: 31, also: ", or L for the last day"}
}

func monthField() field {
	names := []string{"JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"}
	return field{name: "month", low: 1, high: 12, last: 12, names: names}
}

func weekdayField() field {
	names := []string{"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"}
	return field{name: "day of week", high: 7, last: 6, names: names, also: ", or such as 5#2 for the second Friday"}
}

// parseFields reads the words of an expression.
func parseFields(words []string) (fields, error) {
	words, err := spellOut(words)
	if err != nil {
		return fields{}, err
	}
	second, minute, hour, day, month, weekday := words[0], words[1], words[2], words[3], words[4], words[5]
	var f fields
	for _, part := range []struct {
		word  string
		field field
		set   *uint64
	}{
		{second, secondField(), &f.second},
		{minute, minuteField(), &f.minute},
		{hour, hourField(), &f.hour},
		{month, monthField(), &f.month},
	} {
		if *part.set, err = part.field.list(part.word); err != nil {
			return fields{}, err
		}
	}
	if f.day, f.lastDay, err = parseDays(day); err != nil {
		return fields{}, err
	}
	if f.weekdays, err = parseWeekdays(weekday); err != nil {
		return fields{}, err
	}
	f.eitherDay = restricted(day) && restricted(weekday)
	f.goesOn = hour == "*" || strings.HasPrefix(hour, "*/") && !strings.Contains(hour, ",")
	return f, nil
}

// spellOut returns the six words of an expression that has one, five or six words.
func spellOut(words []string) ([]string, error) {
	if len(words) == 1 {
		switch strings.ToLower(words[0]) {
		case "@hourly":
			return []string{"0", "0", "*", "*", "*", "*"}, nil
		case "@daily", "@midnight":
			return []string{"0", "0", "0", "*", "*", "*"}, nil
		case "@weekly":
			return []string{"0", "0", "0", "*", "*", "0"}, nil
		case "@monthly":
			return []string{"0", "0", "0", "1", "*", "*"}, nil
		case "@yearly", "@annually":
			return []string{"0", "0", "0", "1", "1", "*"}, nil
		}
	}
	text := strings.Join(words, " ")
	switch zone := zoneIn(words); {
	case zone != "":
		return nil, fmt.Errorf("cron expression %q: the zone stands apart: TZ %s (--tz, tz:)", text, zone)
	case len(words) > 1 && strings.EqualFold(words[0], "@every"):
		interval := strings.Join(words[1:], " ")
		if !durations().MatchString(interval) {
			interval = "5m"
		}
		return nil, fmt.Errorf(
			"cron expression %q: an interval is no cron expression: want EVERY in milliseconds (such as --every %s, "+
				"every: %s)",
			text, interval, interval)
	case strings.HasPrefix(text, "@"):
		return nil, fmt.Errorf("cron expression %q: want @hourly, @daily, @weekly, @monthly or @yearly", text)
	case len(words) == 5:
		return slices.Insert(words, 0, "0"), nil
	case len(words) == 6:
		return words, nil
	}
	return nil, fmt.Errorf(
		"cron expression %q has %d fields: want five (minute, hour, day, month, weekday), or six with the second first",
		text, len(words))
}

// zoneIn returns the first or the last word of an expression if it is a zone, or "".
func zoneIn(words []string) string {
	if len(words) < 2 {
		return ""
	}
	first, last := words[0], words[len(words)-1]
	for _, name := range []string{"CRON_TZ=", "TZ="} {
		if zone, ok := strings.CutPrefix(first, name); ok && zone != "" {
			return zone
		}
	}
	area, place, isPlace := strings.Cut(last, "/")
	_, isDay := weekdayField().number(area)
	isUTC := strings.EqualFold(last, "UTC") || strings.EqualFold(last, "GMT")
	if isUTC || isPlace && !isDay && isWord(area) && isWord(place) {
		return last
	}
	return ""
}

// isWord reports whether a text begins with a letter.
func isWord(text string) bool {
	return text != "" && (text[0] >= 'A' && text[0] <= 'Z' || text[0] >= 'a' && text[0] <= 'z')
}

// durations matches the durations of --every, without signs and spaces.
func durations() *regexp.Regexp { return regexp.MustCompile(`^([0-9]+\.?[0-9]*(ms|[smhd]))+$`) }

// restricted reports whether a field of days is restricted, by its spelling.
func restricted(word string) bool { return word != "*" && word != "*/1" }

// parseDays reads the day of the month: its numbers, and whether the last day is among them.
func parseDays(word string) (set uint64, last bool, err error) {
	f := dayField()
	for item := range strings.SplitSeq(word, ",") {
		if strings.EqualFold(item, "L") {
			last = true
			continue
		}
		some, err := f.item(item)
		if err != nil {
			return 0, false, err
		}
		set |= some
	}
	return set, last, nil
}

// parseWeekdays reads the day of the week.
func parseWeekdays(word string) (days [7]uint64, err error) {
	f := weekdayField()
	for item := range strings.SplitSeq(word, ",") {
		name, which, isNth := strings.Cut(item, "#")
		weeks := uint64(everyWeek)
		if isNth {
			n, ok := number(which)
			if _, single := f.number(name); !ok || !single || n < 1 || n > 5 {
				return days, f.fault(item, "after # comes which one of the month, from 1 to 5, and before it one day")
			}
			weeks = 1 << (7 * (n - 1))
		}
		set, err := f.item(name)
		if err != nil {
			return days, err
		}
		for i := range 8 {
			if has(set, i) {
				days[i%7] |= weeks
			}
		}
	}
	return days, nil
}

// list reads a whole field.
func (f field) list(word string) (set uint64, err error) {
	for item := range strings.SplitSeq(word, ",") {
		some, err := f.item(item)
		if err != nil {
			return 0, err
		}
		set |= some
	}
	return set, nil
}

// item reads a part of a list: *, a number, a range, or one of these with a step.
func (f field) item(item string) (set uint64, err error) {
	span, step, stepped := strings.Cut(item, "/")
	low, high, err := f.span(item, span, stepped)
	if err != nil {
		return 0, err
	}
	by := 1
	if stepped {
		var ok bool
		if by, ok = number(step); !ok || by < 1 || by > f.last-f.low+1 {
			return 0, f.fault(item, fmt.Sprintf("a step is a number from 1 to %d", f.last-f.low+1))
		}
	}
	if high < low {
		return 0, f.fault(item, "a range goes up: write "+f.upward(span, low, high, by))
	}
	for n := low; n <= high; n += by {
		set |= 1 << n
	}
	return set, nil
}

// span reads an item without its step: its bounds, which may go down.
func (f field) span(item, span string, stepped bool) (low, high int, err error) {
	if span == "*" {
		return f.low, f.last, nil
	}
	from, to, isRange := strings.Cut(span, "-")
	low, ok := f.number(from)
	if !ok {
		return 0, 0, f.fault(item, "")
	}
	switch {
	case isRange:
		if high, ok = f.number(to); !ok {
			return 0, 0, f.fault(item, "")
		}
	case stepped:
		high = max(low, f.last)
	default:
		high = low
	}
	if high == 0 && low > 0 && f.high > f.last {
		high = f.high // a range to Sunday
	}
	return low, high, nil
}

// upward rewrites a descending range, from low to high, as ascending ranges of the same numbers: after the last number
// the steps go on from the lowest one.
func (f field) upward(span string, low, high, by int) string {
	from, to, _ := strings.Cut(span, "-")
	if low > f.last { // Sunday is 7, too
		return steps("0", to, 0, high, by)
	}
	next := low + (f.last-low)/by*by + by - (f.last - f.low + 1) // the first number after the lowest one
	first := steps(from, strconv.Itoa(f.last), low, f.last, by)
	if next > high {
		return first
	}
	return first + "," + steps(strconv.Itoa(next), to, next, high, by)
}

// steps returns every step-th number of a range, from low to high. from and to are their spellings in the expression.
func steps(from, to string, low, high, by int) string {
	switch {
	case low+by > high:
		return from
	case by == 1:
		return from + "-" + to
	}
	return fmt.Sprintf("%s-%s/%d", from, to, by)
}

// number reads a number of the field, or a name.
func (f field) number(text string) (int, bool) {
	if i := slices.Index(f.names, strings.ToUpper(text)); i >= 0 {
		return f.low + i, true
	}
	n, ok := number(text)
	return n, ok && n >= f.low && n <= f.high
}

// fault is the error of a bad item. why adds a reason; it may be empty.
func (f field) fault(item, why string) error {
	allowed := fmt.Sprintf("numbers from %d to %d", f.low, f.high)
	if len(f.names) > 0 {
		allowed += fmt.Sprintf(" or %s to %s", f.names[0], f.names[len(f.names)-1])
	}
	if why != "" {
		why += "; "
	}
	return fmt.Errorf("%s %q: %swant * or %s, as a list 1,2, a range 1-5 or with a step */5%s", f.name,
		abbreviate(item), why, allowed, f.also)
}

// number reads digits only, few enough for any field.
func number(text string) (int, bool) {
	if len(text) > 3 || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	return n, err == nil
}
