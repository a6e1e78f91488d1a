package main

import (
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/query"
)

// The difference between a timer and its entry in a file is shown by field; equal ones show none.
func TestChangesOfRepetitions(t *testing.T) {
	now := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	hourly := func(change func(*query.Repetition)) *query.Repetition {
		r := query.Repetition{Text: "every 1h0m0s", From: now.Add(-90 * time.Minute), Payload: []byte("p")}
		if change != nil {
			change(&r)
		}
		return &r
	}
	daily := query.Repetition{Text: "cron @daily Europe/Berlin", Payload: []byte("p"), From: time.UnixMilli(0)}
	long := strings.Repeat("x", 100)
	for _, test := range []struct {
		name, fields string
		has          query.KeyState
		want         string // kind, then the fields
	}{
		{"new", "every: 1h\npayload: p", query.KeyState{}, `+ a:b:c:d
    repeat   every 1h0m0s
    payload  p
    next     Fri 2026-11-20 10:00:00 +00:00 (1h)
`},
		{"new, with all", "cron: '@daily'\ntz: Europe/Berlin\nfrom: 2027-03-01T00:00:00Z\nuntil: 2027-12-01T00:00:00Z\ntimes: 2\ncatchup: 1d\nlate: 5m\ndrop_late: true", query.KeyState{}, `+ a:b:c:d
    repeat   cron @daily Europe/Berlin
    from     2027-03-01T00:00:00.000Z
    until    2027-12-01T00:00:00.000Z
    times    2
    catchup  1d
    late     5m, then dropped
    next     Tue 2027-03-02 00:00:00 +01:00 (101d 14h)
`},
		{"a single timer", "every: 1h", query.KeyState{Due: now.Add(time.Minute)}, `~ a:b:c:d
    repeat   a single timer, due at 2026-11-20T09:01:00.000Z → every 1h0m0s
    next     Fri 2026-11-20 10:00:00 +00:00 (1h)
`},
		{"the same", "every: 60m\npayload: p", query.KeyState{Repetition: hourly(nil)}, "="},
		{"the same, from elsewhere", "every: 1h\npayload: p\nfrom: 2026-11-20T07:30:00Z",
			query.KeyState{Repetition: hourly(nil)}, "="},
		{"the same cron", "cron: '@daily'\ntz: Europe/Berlin\npayload: p", query.KeyState{Repetition: &daily}, "="},
		{"another zone", "cron: '@daily'\npayload: p", query.KeyState{Repetition: &daily}, `~ a:b:c:d
    repeat   cron @daily Europe/Berlin → cron @daily UTC
    next     Sat 2026-11-21 00:00:00 +00:00 (15h)
`},
		{"another payload keeps the grid", "every: 1h\npayload: q", query.KeyState{Repetition: hourly(nil)}, `~ a:b:c:d
    payload  p → q
    next     Fri 2026-11-20 09:30:00 +00:00 (30m)
`},
		{"another interval begins anew", "every: 2h\npayload: p", query.KeyState{Repetition: hourly(nil)}, `~ a:b:c:d
    repeat   every 1h0m0s → every 2h0m0s
    next     Fri 2026-11-20 11:00:00 +00:00 (2h)
`},
		{"another grid", "every: 1h\npayload: p\nfrom: 2026-11-20T00:15:00Z", query.KeyState{Repetition: hourly(nil)}, `~ a:b:c:d
    from     2026-11-20T07:30:00.000Z → 2026-11-20T00:15:00.000Z
    next     Fri 2026-11-20 09:15:00 +00:00 (15m)
`},
		{"it was to begin later", "every: 1h\npayload: p", query.KeyState{Repetition: hourly(func(r *query.Repetition) { r.From = now.Add(time.Hour) })}, `~ a:b:c:d
    from     2026-11-20T10:00:00.000Z → nothing
    next     Fri 2026-11-20 10:00:00 +00:00 (1h)
`},
		{"no options any more", "every: 1h\npayload: p", query.KeyState{Repetition: hourly(func(r *query.Repetition) {
			r.Until, r.Times, r.CatchUp, r.Late = now.Add(time.Hour), 3, time.Minute, policy.Limit{Given: true}
		})}, `~ a:b:c:d
    until    2026-11-20T10:00:00.000Z → nothing
    times    3 → nothing
    catchup  1m → nothing
    late     no limit → nothing
    next     Fri 2026-11-20 09:30:00 +00:00 (30m)
`},
		{"drop_late alone", "every: 1h\npayload: p\nlate: 1m",
			query.KeyState{Repetition: hourly(func(r *query.Repetition) {
				r.Late = policy.Limit{Given: true, Most: time.Minute, Drop: true}
			})}, `~ a:b:c:d
    late     1m, then dropped → 1m
    next     Fri 2026-11-20 09:30:00 +00:00 (30m)
`},
		{"an empty payload for none", "every: 1h", query.KeyState{Repetition: hourly(func(r *query.Repetition) { r.Payload = nil })}, `~ a:b:c:d
    payload  (none) → ""
    next     Fri 2026-11-20 09:30:00 +00:00 (30m)
`},
		{"long payloads", "every: 1h\npayload: " + long + "ü1", query.KeyState{Repetition: hourly(func(r *query.Repetition) { r.Payload = []byte(long + "ü2") })}, `~ a:b:c:d
    payload  …xxxxxxxxxxxxxxxxxxü2 (103 bytes) → …xxxxxxxxxxxxxxxxxxü1 (103 bytes)
    next     Fri 2026-11-20 09:30:00 +00:00 (30m)
`},
		{"over", "every: 1h\nuntil: 2026-11-20T08:00:00Z", query.KeyState{}, "over"},
		{"over before it is due again", "every: 1h\nuntil: 2026-11-20T09:30:00Z", query.KeyState{}, "over"},
		{"over, and its last occurrence waits", "every: 1h\npayload: p\nuntil: 2026-11-20T08:00:00Z",
			query.KeyState{Repetition: hourly(func(r *query.Repetition) { r.Until = now.Add(-time.Hour) })}, "="},
		{"ended by the file", "every: 1h\npayload: p\nuntil: 2026-11-20T08:00:00Z", query.KeyState{Repetition: hourly(nil)}, `- a:b:c:d
    until    2026-11-20T08:00:00.000Z, which has passed
`},
		{"over, and the key is a single timer", "every: 1h\nuntil: 2026-11-20T08:00:00Z",
			query.KeyState{Due: now.Add(time.Hour)}, "over"},
		{"never", "cron: 0 0 30 2 *", query.KeyState{},
			"fault: cron: no occurrence in the eight years after 2026-11-20T09:00:00.000Z"},
		{"too far ahead", "every: 1h\nfrom: 2040-01-01T00:00:00Z", query.KeyState{},
			"fault: from: is over 10 years ahead"},
	} {
		wanted, faults := admin.ParseRepetitions([]byte("repeat:\n  - key: a:b:c:d\n    " +
			strings.ReplaceAll(test.fields, "\n", "\n    ") + "\n"))
		if len(faults) > 0 {
			t.Fatalf("%s: %v", test.name, faults)
		}
		c, err := wanted[0].Change(test.has, now)
		got := string(c.Kind)
		switch {
		case err != nil:
			got = "fault: " + err.Error()
		case c.Kind != admin.ToLeave && c.Kind != admin.ToForget:
			var text strings.Builder
			writeChange(&text, &c, now)
			got = text.String()
		}
		if got != test.want {
			t.Errorf("%s:\n%s\nwant\n%s", test.name, got, test.want)
		}
	}
}
