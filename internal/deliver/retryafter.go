package deliver

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxRetryAfter bounds the wait that a host may ask for.
const maxRetryAfter = 24 * time.Hour

// retryAfter reads the header Retry-After, and reports whether it asks for a wait. The wait is in whole seconds,
// rounded up, and at most maxRetryAfter. Of several values, in one line or in more, the longest counts. A date is by
// the host's clock, so it is compared with the answer's own Date if there is one.
//
// Servers write more than RFC 9110 allows: fractions of a second, values doubled by a proxy, other time zones. Ignoring
// such a value would bring the next call far too early.
func retryAfter(h http.Header, now time.Time) (time.Duration, bool) {
	for piece := range strings.SplitSeq(h.Get("Date"), ",") {
		if date, ok := parseDate(piece); ok {
			now = date
		}
	}
	var longest time.Duration
	for _, line := range h.Values("Retry-After") {
		for piece := range strings.SplitSeq(line, ",") { // the day of the week, before a date's comma, is ignored
			longest = max(longest, parseWait(strings.Trim(piece, " \t\"'"), now))
		}
	}
	return longest, longest > 0
}

// parseWait reads one value of Retry-After: seconds, a duration such as 90s, or a date without the day of the week. It
// returns 0 for anything else, and for an empty value.
func parseWait(text string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseFloat(text, 64); strings.Trim(text, "0123456789.") == "" &&
		(err == nil || seconds > 0) {
		return wholeSeconds(time.Duration(min(seconds, maxRetryAfter.Seconds()) * float64(time.Second)))
	}
	if d, err := time.ParseDuration(text); err == nil {
		return wholeSeconds(d)
	}
	if at, ok := parseDate(text); ok {
		return wholeSeconds(at.Sub(now))
	}
	return 0
}

// wholeSeconds rounds a wait up to seconds. It is 0 at least, and maxRetryAfter at most.
func wholeSeconds(d time.Duration) time.Duration {
	d = min(max(d, 0), maxRetryAfter)
	return (d + time.Second - 1).Truncate(time.Second)
}

// parseDate reads a date in a form of HTTP, without the day of the week and its comma, or by RFC 3339. Case and padding
// do not matter. The zone may be a numeric one; without one it is UTC.
func parseDate(text string) (time.Time, bool) {
	words := strings.Fields(strings.ToUpper(text))
	if n := len(words); n > 0 {
		switch words[n-1] {
		case "GMT", "UTC", "UT", "Z":
			words = words[:n-1]
		}
	}
	text = strings.Join(words, " ")
	for _, layout := range []string{
		"2 Jan 2006 15:04:05", "2-Jan-06 15:04:05", "2-Jan-2006 15:04:05", time.RFC3339, "2006-01-02 15:04:05",
		"Mon Jan 2 15:04:05 2006",
	} {
		for _, zone := range []string{"", " -0700", " -07:00"} {
			if at, err := time.Parse(layout+zone, text); err == nil {
				return at, true
			}
		}
	}
	return time.Time{}, false
}
