package admin

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Moment is an instant, or a duration from now.
type Moment struct {
	at time.Time // the zero Time: in counts, from now
	in time.Duration
}

// ParseMoment reads a moment as an operator types it: a duration with days, an instant, or @unix-ms.
func ParseMoment(s string) (Moment, error) {
	if ms, ok := strings.CutPrefix(s, "@"); ok {
		n, err := strconv.ParseInt(ms, 10, 64)
		if err != nil {
			return Moment{}, fmt.Errorf("%q: want milliseconds since 1970 after the @", s)
		}
		return Moment{at: time.UnixMilli(n)}, nil
	}
	if d, err := ParseDuration(s); err == nil {
		return Moment{in: d}, nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return Moment{at: t}, nil
	}
	return Moment{}, fmt.Errorf(
		"%q: want a duration such as 90s, 1h30m or 30d, an instant such as 2026-11-20T09:00:00Z, or @unix-ms", s)
}

// Instant returns the instant; ok is false for a duration.
func (m Moment) Instant() (at time.Time, ok bool) { return m.at, !m.at.IsZero() }

// In returns the duration from now; 0 for an instant.
func (m Moment) In() time.Duration { return m.in }

// From returns the instant; a duration begins at now.
func (m Moment) From(now time.Time) time.Time {
	if m.at.IsZero() {
		return now.Add(m.in)
	}
	return m.at
}

// ErrDuration is the error of a malformed duration.
var ErrDuration = errors.New("want a duration such as 90s, 1h30m or 30d")

// ParseDuration reads a duration as Go writes it, with days of 24 hours before it: 90s, 1h30m, 30d, 1d12h. Spaces
// between the parts are ignored. Its error is ErrDuration.
func ParseDuration(s string) (time.Duration, error) {
	text := strings.ReplaceAll(s, " ", "")
	rest, negative := strings.CutPrefix(text, "-")
	whole, rest, hasDays := strings.Cut(rest, "d")
	if !hasDays {
		d, err := time.ParseDuration(text)
		if err != nil {
			err = ErrDuration
		}
		return d, err
	}
	if strings.Trim(whole, "0123456789.") != "" || strings.HasPrefix(rest, "-") || strings.HasPrefix(rest, "+") {
		return 0, ErrDuration
	}
	hours, err := time.ParseDuration(whole + "h") // the syntax is right, the value a 24th
	if err != nil || hours > math.MaxInt64/24 {
		return 0, ErrDuration
	}
	d := 24 * hours
	if rest != "" {
		more, err := time.ParseDuration(rest)
		if err != nil || more > math.MaxInt64-d {
			return 0, ErrDuration
		}
		d += more
	}
	if negative {
		d = -d
	}
	return d, nil
}
