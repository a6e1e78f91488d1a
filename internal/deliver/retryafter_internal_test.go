package deliver

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// Retry-After as servers write it, with the answer's Date a minute and a half before Fri, 20 Nov 2015 08:01:30 GMT.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2015, time.November, 20, 8, 0, 0, 0, time.UTC)
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"300": 300 * time.Second, " 300 ": 300 * time.Second, "299.997": 300 * time.Second, "300.0": 300 * time.Second,
		".5": time.Second, "\"300\"": 300 * time.Second,
		"300, 300": 300 * time.Second, "7,300": 300 * time.Second, "300\n7": 300 * time.Second,
		"soon, 7": 7 * time.Second, "90s": 90 * time.Second, "1m0.5s": 61 * time.Second,
		"86400": day, "86401": day, "1e3": 0, "99999999999999999999": day, strings.Repeat("9", 400): day, "0": 0,
		"0.0": 0, "-5": 0, "-5s": 0, "": 0, "soon": 0, "NaN": 0, "Inf": 0, "0x10": 0, "1.2.3": 0, ".": 0,
		"Fri, 20 Nov 2015 08:01:30 GMT": 90 * time.Second, "Fri, 20 Nov 2015 08:01:30 UTC": 90 * time.Second,
		"Fri, 20 Nov 2015 08:01:30 +0000": 90 * time.Second,
		"Fri, 20 Nov 2015 09:01:30 +0100": 90 * time.Second, "Fri, 20 Nov 2015 09:01:30 +01:00": 90 * time.Second,
		"fri, 20 nov 2015 08:01:30 gmt":         90 * time.Second,
		"  Fri,  20  Nov  2015  08:01:30  GMT ": 90 * time.Second, "20 Nov 2015 08:01:30 GMT": 90 * time.Second,
		"Fri, 20 Nov 2015 08:01:30": 90 * time.Second, "Fri, 20 Nov 2015 08:01:29.5 GMT": 90 * time.Second,
		"Friday, 20-Nov-15 08:01:30 GMT": 90 * time.Second, "Fri, 20-Nov-2015 08:01:30 UTC": 90 * time.Second,
		"Fri Nov 20 08:01:30 2015": 90 * time.Second,
		"2015-11-20T08:01:30Z":     90 * time.Second, "2015-11-20T09:01:30+01:00": 90 * time.Second,
		"2015-11-20 08:01:30 UTC":                                      90 * time.Second,
		"Fri, 20 Nov 2015 08:01:30 GMT, Fri, 20 Nov 2015 08:00:30 GMT": 90 * time.Second,
		"Tue, 1 Dec 2015 08:00:00 GMT":                                 day,
		"Fri, 20 Nov 2015 07:59:59 GMT":                                0,
		"Fri, 20 Nov 2015 08:01:30 XYZ":                                0,
		"Fri, 31 Feb 2015 08:01:30 GMT":                                0,
	} {
		for date, now := range map[string]time.Time{"": now, "Fri, 20 Nov 2015 08:00:00 GMT": now.Add(time.Hour),
			"fri, 20 nov 2015 08:00:00 +0000": now.Add(-time.Hour)} {
			h := http.Header{}
			if date != "" {
				h.Set("Date", date)
			}
			for line := range strings.SplitSeq(text, "\n") {
				h.Add("Retry-After", line)
			}
			if got, ok := retryAfter(h, now); got != want || ok != (want > 0) {
				t.Errorf("%q, Date %q: %v, %t, want %v", text, date, got, ok, want)
			}
		}
	}
	if got, ok := retryAfter(http.Header{}, now); ok {
		t.Errorf("without the header: %v", got)
	}
}
