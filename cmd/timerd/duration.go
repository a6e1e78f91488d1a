package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

const day = 24 * time.Hour

// errDuration says what a duration looks like.
var errDuration = errors.New("want a duration such as 90s, 1h30m or 30d")

// parseDuration reads a duration as Go writes it, with days of 24 hours before it: 90s, 1h30m, 30d, 1d12h. Spaces
// between the parts are ignored, so that it reads what showDuration writes.
func parseDuration(s string) (time.Duration, error) {
	text := strings.ReplaceAll(s, " ", "")
	rest, negative := strings.CutPrefix(text, "-")
	whole, rest, hasDays := strings.Cut(rest, "d")
	if !hasDays {
		d, err := time.ParseDuration(text)
		if err != nil {
			err = errDuration
		}
		return d, err
	}
	if strings.Trim(whole, "0123456789.") != "" || strings.HasPrefix(rest, "-") || strings.HasPrefix(rest, "+") {
		return 0, errDuration
	}
	hours, err := time.ParseDuration(whole + "h") // has the right syntax, and 24th part
	if err != nil || hours > math.MaxInt64/24 {
		return 0, errDuration
	}
	d := 24 * hours
	if rest != "" {
		more, err := time.ParseDuration(rest)
		if err != nil || more > math.MaxInt64-d {
			return 0, errDuration
		}
		d += more
	}
	if negative {
		d = -d
	}
	return d, nil
}

// moment is a point in time as an argument gives it.
type moment struct {
	at time.Time     // an instant, or the zero Time:
	in time.Duration // so long from now
}

// parseMoment reads a duration from now, an instant or @unix-ms.
func parseMoment(s string) (moment, error) {
	if ms, ok := strings.CutPrefix(s, "@"); ok {
		n, err := strconv.ParseInt(ms, 10, 64)
		if err != nil {
			return moment{}, fmt.Errorf("%q: want milliseconds since 1970 after the @", s)
		}
		return moment{at: time.UnixMilli(n)}, nil
	}
	if d, err := parseDuration(s); err == nil {
		return moment{in: d}, nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return moment{at: t}, nil
	}
	return moment{}, fmt.Errorf("%q: want a duration such as 90s, 1h30m or 30d, an instant such as 2026-11-20T09:00:00Z, or @unix-ms", s)
}

// from returns the moment where it is now a given time.
func (m moment) from(now time.Time) time.Time {
	if m.at.IsZero() {
		return now.Add(m.in)
	}
	return m.at
}

// showDuration writes a duration with days, and without what is zero: 40d 51m, 1h 30m, 4.5s, 0s.
func showDuration(d time.Duration) string {
	if d < 0 {
		return "-" + showDuration(-max(d, -math.MaxInt64))
	}
	var parts []string
	for _, unit := range []struct {
		name string
		of   time.Duration
	}{{"d", day}, {"h", time.Hour}, {"m", time.Minute}} {
		if n := d / unit.of; n > 0 {
			parts = append(parts, fmt.Sprintf("%d%s", n, unit.name))
			d %= unit.of
		}
	}
	if d > 0 || len(parts) == 0 {
		parts = append(parts, d.String())
	}
	return strings.Join(parts, " ")
}

// showAbout writes a duration to a sensible precision: milliseconds below ten seconds, minutes from a day on.
func showAbout(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		d = d.Round(time.Millisecond)
	case d < day:
		d = d.Round(time.Second)
	default:
		d = d.Round(time.Minute)
	}
	return showDuration(d)
}

// durationFlag is the value of a flag that takes a duration with days.
type durationFlag time.Duration

// Set reads the flag's value.
func (f *durationFlag) Set(s string) error {
	d, err := parseDuration(s)
	*f = durationFlag(d)
	return err
}

// String returns the value for a help text, where nothing means that there is no default.
func (f *durationFlag) String() string {
	if *f == 0 {
		return ""
	}
	return showDuration(time.Duration(*f))
}

// Type is what the help text has for a value.
func (f *durationFlag) Type() string { return "duration" }
