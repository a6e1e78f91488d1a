package cron_test

import (
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/cron"
)

// TestByTheZonesRules has occurrences derived by hand from the published rules of the zones. "" is none.
func TestByTheZonesRules(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		zone, expression, after string
		next                    []string
	}{
		// United States since 2007: second Sunday in March, 2:00 → 3:00; first Sunday in November, 2:00 → 1:00.
		{"America/New_York", "30 2 * * *", "2026-03-07T02:30:00-05:00",
			[]string{"2026-03-08T03:00:00-04:00", "2026-03-09T02:30:00-04:00"}},
		{"America/New_York", "0,30 2 * * *", "2026-03-07T12:00:00-05:00",
			[]string{"2026-03-08T03:00:00-04:00", "2026-03-09T02:00:00-04:00"}},
		{"America/New_York", "0 2,3 * * *", "2026-03-07T12:00:00-05:00",
			[]string{"2026-03-08T03:00:00-04:00", "2026-03-09T02:00:00-04:00"}},
		{"America/New_York", "0 */2 * * *", "2026-03-08T00:00:00-05:00",
			[]string{"2026-03-08T04:00:00-04:00", "2026-03-08T06:00:00-04:00"}},
		{"America/New_York", "0 */2,5 * * *", "2026-03-08T00:00:00-05:00",
			[]string{"2026-03-08T03:00:00-04:00", "2026-03-08T04:00:00-04:00"}},
		{"America/New_York", "30 1 * * *", "2026-10-31T12:00:00-04:00",
			[]string{"2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"}},
		{"America/New_York", "30 1 * * *", "2026-11-01T01:10:00-05:00", []string{"2026-11-02T01:30:00-05:00"}},
		{"America/New_York", "30 * * * *", "2026-11-01T00:30:00-04:00",
			[]string{"2026-11-01T01:30:00-04:00", "2026-11-01T01:30:00-05:00", "2026-11-01T02:30:00-05:00"}},
		{"America/New_York", "30 0-23 * * *", "2026-11-01T00:30:00-04:00",
			[]string{"2026-11-01T01:30:00-04:00", "2026-11-01T02:30:00-05:00"}},
		// Before 2007: last Sunday in October.
		{"America/New_York", "30 1 29 10 *", "2006-10-28T12:00:00-04:00",
			[]string{"2006-10-29T01:30:00-04:00", "2007-10-29T01:30:00-04:00"}},
		// European Union: last Sunday in March, 2:00 → 3:00; last Sunday in October, 3:00 → 2:00.
		{"Europe/Berlin", "15 2 * * *", "2026-03-28T12:00:00+01:00",
			[]string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:15:00+02:00"}},
		{"Europe/Berlin", "15 2 * * *", "2026-10-24T12:00:00+02:00",
			[]string{"2026-10-25T02:15:00+02:00", "2026-10-26T02:15:00+01:00"}},
		{"Europe/Berlin", "*/10 2 * * *", "2026-10-25T02:40:00+02:00",
			[]string{"2026-10-25T02:50:00+02:00", "2026-10-26T02:00:00+01:00"}},
		{"Europe/Berlin", "0 9 * * 1-5", "2026-11-20T09:00:00+01:00", []string{"2026-11-23T09:00:00+01:00"}},
		// Lord Howe: first Sunday in October, 2:00 → 2:30; first Sunday in April, 2:00 → 1:30.
		{"Australia/Lord_Howe", "15 2 * * *", "2026-10-03T12:00:00+10:30",
			[]string{"2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"}},
		{"Australia/Lord_Howe", "45 1 * * *", "2026-04-04T12:00:00+11:00",
			[]string{"2026-04-05T01:45:00+11:00", "2026-04-06T01:45:00+10:30"}},
		{"Australia/Lord_Howe", "*/15 * * * *", "2026-04-05T01:45:00+11:00",
			[]string{"2026-04-05T01:30:00+10:30", "2026-04-05T01:45:00+10:30", "2026-04-05T02:00:00+10:30"}},
		// Brazil in 2018: to the third Sunday in February, 0:00 → 23:00; from the first Sunday in November, 0:00 →
		// 1:00.
		{"America/Sao_Paulo", "0 0 * * *", "2018-11-03T12:00:00-03:00",
			[]string{"2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00"}},
		{"America/Sao_Paulo", "0,30 0 4 11 *", "2018-11-03T12:00:00-03:00", []string{"2018-11-04T01:00:00-02:00"}},
		{"America/Sao_Paulo", "30 23 * * *", "2018-02-17T12:00:00-02:00",
			[]string{"2018-02-17T23:30:00-02:00", "2018-02-18T23:30:00-03:00"}},
		// Samoa had no 30 December 2011: the clock went from the end of the 29th at -10 to the 31st at +14.
		{"Pacific/Apia", "0 9 * * *", "2011-12-29T09:00:00-10:00",
			[]string{"2011-12-31T00:00:00+14:00", "2011-12-31T09:00:00+14:00"}},
		{"Pacific/Apia", "0 9,17 30 12 *", "2011-12-01T00:00:00-10:00",
			[]string{"2011-12-31T00:00:00+14:00", "2012-12-30T09:00:00+14:00"}},
		{"Pacific/Apia", "0 * * * *", "2011-12-29T23:00:00-10:00",
			[]string{"2011-12-31T00:00:00+14:00", "2011-12-31T01:00:00+14:00"}},
		// Nepal: +5:45, and +5:30 until the end of 1985.
		{"Asia/Kathmandu", "0 9 * * *", "2026-01-01T00:00:00Z", []string{"2026-01-01T03:15:00Z"}},
		{"Asia/Kathmandu", "10 0 * * *", "1985-12-31T12:00:00+05:30",
			[]string{"1986-01-01T00:15:00+05:45", "1986-01-02T00:10:00+05:45"}},
		// The calendar.
		{"UTC", "0 0 L 2 *", "2027-03-01T00:00:00Z", []string{"2028-02-29T00:00:00Z", "2029-02-28T00:00:00Z"}},
		{"Europe/Berlin", "0 * * * *", "2028-12-31T12:00:00+01:00", []string{"2028-12-31T13:00:00+01:00"}},
		{"Europe/Berlin", "0 12 * * *", "2028-12-31T12:00:00+01:00", []string{"2029-01-01T12:00:00+01:00"}},
		{"UTC", "0 0 29 2 *", "2096-02-29T00:00:00Z", []string{"2104-02-29T00:00:00Z"}},
		{"UTC", "0 9 * * 5#2", "2026-02-01T00:00:00Z", []string{"2026-02-13T09:00:00Z", "2026-03-13T09:00:00Z"}},
		{"UTC", "0 0 13 * 5", "2026-02-07T00:00:00Z", []string{"2026-02-13T00:00:00Z", "2026-02-20T00:00:00Z"}},
		{"UTC", "0 0 30 2 *", "2026-02-07T00:00:00Z", []string{""}},
		{"UTC", "0 0 * 2 1#5", "2044-03-01T00:00:00Z", []string{""}},
		{"UTC", "59 59 23 31 12 *", "9999-12-01T00:00:00Z", []string{"9999-12-31T23:59:59Z", ""}},
	} {
		spec, err := cron.At(test.expression, test.zone)
		if err != nil {
			t.Errorf("%s: %v", test.expression, err)
			continue
		}
		at := instant(t, test.after)
		for _, want := range test.next {
			next, ok := (&cron.Repetition{Spec: spec}).Next(at)
			if got := next.In(spec.Location()).Format(time.RFC3339); ok != (want != "") || ok &&
				!next.Equal(instant(t, want)) {
				t.Errorf("%s in %s, after %s: %s %v, want %s", test.expression, test.zone, at, got, ok, want)
			}
			at = next
		}
	}
}
