package console

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/timerd-io/timerd/schedule"
)

// The formats of times, all in UTC.
const (
	clockLayout  = "15:04:05.000"
	dayLayout    = "2006-01-02 15:04:05.000"
	minuteLayout = "15:04"
	jsonLayout   = "2006-01-02T15:04:05.000Z"
)

// Moment is a time, relative to the server's present.
type Moment struct {
	At  time.Time
	Now time.Time
}

// Clock returns the time of day, with the date if it is not today.
func (m Moment) Clock() string {
	at, now := m.At.UTC(), m.Now.UTC()
	if at.Year() == now.Year() && at.YearDay() == now.YearDay() {
		return at.Format(clockLayout)
	}
	return at.Format(dayLayout)
}

// ISO returns the time in ISO 8601.
func (m Moment) ISO() string { return m.At.UTC().Format(jsonLayout) }

// Full returns the time with its day and zone.
func (m Moment) Full() string { return m.At.UTC().Format(dayLayout) + " UTC" }

// Relative returns the time until then, or since.
func (m Moment) Relative() string {
	d := m.At.Sub(m.Now)
	switch {
	case d > 0:
		return "in " + about(d)
	case d > -time.Second:
		return "now"
	}
	return about(-d) + " ago"
}

// about returns a duration in at most two units.
func about(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return "0 ms"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return strconv.FormatFloat(float64(d.Round(100*time.Millisecond))/float64(time.Second), 'f', -1, 64) + " s"
	case d < time.Minute:
		return fmt.Sprintf("%d s", int64(d.Seconds()))
	case d < time.Hour:
		return twoUnits(int64(d/time.Second), 60, "min", "s")
	case d < 24*time.Hour:
		return twoUnits(int64(d/time.Minute), 60, "h", "min")
	}
	return twoUnits(int64(d/time.Hour), 24, "d", "h")
}

func twoUnits(n, per int64, large, small string) string {
	if n%per == 0 {
		return fmt.Sprintf("%d %s", n/per, large)
	}
	return fmt.Sprintf("%d %s %d %s", n/per, large, n%per, small)
}

// ms returns a lateness in ms, with a decimal if it is small.
func ms(d time.Duration) string {
	v := float64(d) / float64(time.Millisecond)
	switch {
	case math.Abs(v) < 100:
		return strconv.FormatFloat(v, 'f', 1, 64) + " ms"
	case math.Abs(v) < 10_000:
		return grouped(int64(math.Round(v))) + " ms"
	}
	return about(d)
}

// lateness is a delay of events: in ms in JSON, with its unit in text.
type lateness time.Duration

// latenessOf returns the lateness not exceeded by a share of events, nil without events.
func latenessOf(of schedule.Lateness, share float64) *lateness {
	if of.Count() == 0 {
		return nil
	}
	l := lateness(of.Quantile(share))
	return &l
}

// MarshalJSON implements [json.Marshaler].
func (l lateness) MarshalJSON() ([]byte, error) {
	return json.Marshal(float64(l) / float64(time.Millisecond))
}

func (l lateness) String() string { return ms(time.Duration(l)) }

// eventLate returns the lateness of an event, in whole milliseconds.
func eventLate(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return "< 1 ms"
	case d < 10*time.Second:
		return grouped(d.Milliseconds()) + " ms"
	}
	return about(d)
}

// grouped formats a number with its thousands separated.
func grouped(n int64) string {
	text := strconv.FormatInt(n, 10)
	first := 0
	if n < 0 {
		first = 1
	}
	for i := len(text) - 3; i > first; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// counted formats a number with its noun.
func counted(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return grouped(n) + " " + many
}

// perSecond formats a rate.
func perSecond(rate float64) string {
	if rate > 0 && rate < 10 {
		return strconv.FormatFloat(rate, 'f', 1, 64)
	}
	return grouped(int64(math.Round(rate)))
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func attemptText(n, of int) string {
	switch {
	case n == 0:
		return ""
	case of < n:
		return strconv.Itoa(n)
	}
	return strconv.Itoa(n) + "/" + strconv.Itoa(of)
}
