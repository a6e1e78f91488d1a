package cron

import (
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // also for machines without a database of zones
)

// Bounds of an interval.
const (
	MinInterval = 100 * time.Millisecond
	MaxInterval = 10 * 365 * 24 * time.Hour // a timer's longest delay
)

// Limits of a cron expression and a zone, in bytes. They are stored with the timer and part of each event.
const (
	MaxExpression = 256
	maxZone       = 64
)

// Spec is the rhythm of a repetition: an interval or a cron expression. The zero Spec has no occurrences.
type Spec struct {
	interval time.Duration
	cron     *cron
}

// cron is an expression in a zone.
type cron struct {
	fields

	expression string
	zone       zone
}

// Every returns the Spec of an interval: whole milliseconds from MinInterval to MaxInterval.
func Every(interval time.Duration) (Spec, error) {
	switch {
	case interval < MinInterval || interval > MaxInterval:
		return Spec{}, fmt.Errorf("interval %v: want from %v to %vh", interval, MinInterval, MaxInterval.Hours())
	case interval%time.Millisecond != 0:
		return Spec{}, fmt.Errorf("interval %v: want whole milliseconds", interval)
	}
	return Spec{interval: interval}, nil
}

// At returns the Spec of a cron expression in a zone of the IANA database, such as Europe/Berlin; no zone means UTC.
// Only [Repetition.Next] finds out whether the expression ever matches. An error names the field, its value, and the
// allowed values.
func At(expression, zoneName string) (Spec, error) {
	if len(expression) > MaxExpression {
		return Spec{}, fmt.Errorf("cron expression of %d bytes: want at most %d", len(expression), MaxExpression)
	}
	words := strings.Fields(expression)
	f, err := parseFields(words)
	if err != nil {
		return Spec{}, err
	}
	z, err := loadZone(zoneName)
	if err != nil {
		return Spec{}, err
	}
	return Spec{cron: &cron{fields: f, expression: strings.Join(words, " "), zone: z}}, nil
}

// Parse reads a text that String has returned: "every 5m0s", or "cron 0 9 * * 1-5 Europe/Berlin". The zone may be left
// out for UTC.
func Parse(text string) (Spec, error) {
	kind, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	switch kind {
	case "every":
		rest = strings.TrimSpace(rest)
		interval, err := time.ParseDuration(rest)
		if err != nil {
			return Spec{}, fmt.Errorf("interval %q: want a duration such as 500ms, 5m or 1h30m", abbreviate(rest))
		}
		return Every(interval)
	case "cron":
		expression, zoneName := cutZone(rest)
		return At(expression, zoneName)
	}
	return Spec{}, fmt.Errorf(`repetition %q: want "every" and a duration, or "cron", an expression and a zone`,
		abbreviate(text))
}

// cutZone cuts the zone off the end of an expression, if it has one: a word that begins with a letter, and is neither a
// day of the week nor the expression itself.
func cutZone(text string) (expression, zoneName string) {
	words := strings.Fields(text)
	if len(words) < 2 {
		return text, ""
	}
	last := words[len(words)-1]
	if c := last[0] | 0x20; c < 'a' || c > 'z' {
		return text, ""
	}
	if _, err := parseWeekdays(last); err == nil {
		return text, ""
	}
	return strings.Join(words[:len(words)-1], " "), last
}

// String returns the Spec in the form that Parse reads. Expressions are as they were written, with one space between
// their fields, and always have their zone.
func (s Spec) String() string {
	switch {
	case s.cron != nil:
		return "cron " + s.cron.expression + " " + s.cron.zone.String()
	case s.interval > 0:
		return "every " + s.interval.String()
	}
	return ""
}

// Location returns the zone of a cron expression, and UTC for an interval.
func (s Spec) Location() *time.Location {
	if s.cron == nil {
		return time.UTC
	}
	return s.cron.zone.Location
}

// abbreviate shortens a user's text for an error.
func abbreviate(text string) string {
	const most = 40
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
