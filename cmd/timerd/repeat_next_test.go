package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
)

// No server is there, and none is configured.
func TestRepeatNext(t *testing.T) {
	testenv.SetVariables(t, nil)
	for _, test := range []struct{ args, want string }{
		{"'30 2 * * *' --tz America/New_York --from 2026-03-07T07:30:00Z -n 3", `DUE                       LOCAL
2026-03-07T07:30:00.000Z  Sat 2026-03-07 02:30:00 -05:00
2026-03-08T07:00:00.000Z  Sun 2026-03-08 03:00:00 -04:00
2026-03-09T06:30:00.000Z  Mon 2026-03-09 02:30:00 -04:00
`},
		{"'cron @daily Asia/Kathmandu' --from @1774746000123 --count 1", `DUE                       LOCAL
2026-03-29T18:15:00.000Z  Mon 2026-03-30 00:00:00 +05:45
`},
		{"'every 1d12h' --from 2026-01-01T00:00:00+01:00 -n 2", `DUE                       LOCAL
2025-12-31T23:00:00.000Z  Wed 2025-12-31 23:00:00 +00:00
2026-01-02T11:00:00.000Z  Fri 2026-01-02 11:00:00 +00:00
`},
		{"'15 30 9 * * MON#1' --from 2026-03-01T00:00:00Z -n 1 --json", `{"due":1772443815000,"dueat":"2026-03-02T09:30:15.000Z","local":"2026-03-02T09:30:15.000Z"}
`},
	} {
		if out := ok(t, append([]string{"repeat", "next"}, quoted(test.args)...)...); out != test.want {
			t.Errorf("timerd repeat next %s:\n%swant\n%s", test.args, out, test.want)
		}
	}
	code, out, errs := timerd(t, "", "repeat", "next", "0 0 * 2 1#5", "--from", "2043-01-01T00:00:00Z")
	if code != 0 || strings.Count(out, "\n") != 3 || errs != "" ||
		!strings.Contains(out, "no further occurrence within eight years") {
		t.Errorf("an expression that comes to an end: %d\n%s%s", code, out, errs)
	}
}

func TestRepeatNextBeginsNow(t *testing.T) {
	testenv.SetVariables(t, nil)
	before := time.Now()
	if out := ok(t, "repeat", "next", "@hourly"); !strings.HasPrefix(out, "DUE ") || !strings.Contains(out, " IN ") ||
		strings.Count(out, "\n") != 6 {
		t.Errorf("repeat next @hourly:\n%s", out)
	}
	var first occurrenceView
	if err := json.Unmarshal([]byte(ok(t, "repeat", "next", "every 1h", "--json", "-n", "1")), &first); err != nil {
		t.Fatal(err)
	}
	due := time.UnixMilli(first.Due)
	if due.Before(before.Add(time.Hour).Truncate(time.Millisecond)) || due.After(time.Now().Add(time.Hour)) {
		t.Errorf("every hour, asked at %v: %+v", before, first)
	}
}

func TestRepeatNextTellsFaults(t *testing.T) {
	testenv.SetVariables(t, nil)
	for args, want := range map[string]string{
		"'60 * * * *'":                         `minute "60": want * or numbers from 0 to 59`,
		"'0 9 * *'":                            "has 4 fields: want five (minute, hour, day, month, weekday)",
		"@dayly":                               "want @hourly, @daily",
		"@daily --tz Berlin":                   `zone "Berlin" is not in the time zone database`,
		"'cron @daily Berlin'":                 `zone "Berlin" is not in the time zone database`,
		"'cron @daily UTC' --tz Europe/Berlin": "--tz goes with a cron expression only",
		"'every 5m' --tz UTC":                  "--tz goes with a cron expression only",
		"'every soon'":                         `interval "soon": want a duration such as 90s, 1h30m or 30d`,
		"'every 99ms'":                         "interval 99ms: want from 100ms",
		"'0 0 30 2 *'":                         `EXPR "0 0 30 2 *": no occurrence in the eight years after 20`,
		"@daily --from soon":                   `--from "soon": want a duration`,
		"@daily -n 0":                          "--count=0: want a number from 1 to 10000",
		"@daily -n 10001":                      "want a number from 1 to 10000",
		"0 9 * * 1":                            "got 5 arguments; put quotes around it",
		"":                                     "want EXPR, got nothing",
	} {
		code, out, errs := timerd(t, "", append([]string{"repeat", "next"}, quoted(args)...)...)
		if code != 2 || out != "" || !strings.Contains(errs, want) {
			t.Errorf("timerd repeat next %s: exit code %d, want 2 and %q\n%s%s", args, code, want, out, errs)
		}
	}
}

// quoted splits arguments at spaces, but for those between quotes.
func quoted(line string) (args []string) {
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			args = append(args, part)
		} else {
			args = append(args, strings.Fields(part)...)
		}
	}
	return args
}
