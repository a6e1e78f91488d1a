package cron_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/cron"
)

func TestFaultsNameTheFieldAndWhatIsAllowed(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ expression, zone, want string }{
		{"", "", "has 0 fields: want five (minute, hour, day, month, weekday), or six with the second first"},
		{"0 9 * *", "", `"0 9 * *" has 4 fields`},
		{"0 0 9 * * 1 2026", "", "has 7 fields"},
		{"@dayly", "", `"@dayly": want @hourly, @daily, @weekly, @monthly or @yearly`},
		{"@daily 5", "", "want @hourly"},
		{"60 * * * *", "", `minute "60": want * or numbers from 0 to 59, as a list 1,2, a range 1-5 or with a step */5`},
		{"* 24 * * *", "", `hour "24": want * or numbers from 0 to 23`},
		{"* * 0 * *", "", `day of month "0": want * or numbers from 1 to 31, as a list 1,2, a range 1-5 or with a step */5, or L for the last day`},
		{"* * 32 * *", "", `day of month "32"`},
		{"* * * 13 *", "", `month "13": want * or numbers from 1 to 12 or JAN to DEC`},
		{"* * * JANUARY *", "", `month "JANUARY"`},
		{"* * * * 8", "", `day of week "8": want * or numbers from 0 to 7 or SUN to SAT, as a list 1,2, a range 1-5 or with a step */5, or such as 5#2 for the second Friday`},
		{"60 * * * * *", "", `second "60"`},
		{"1,,2 * * * *", "", `minute ""`},
		{"5- * * * *", "", `minute "5-"`},
		{"-5 * * * *", "", `minute "-5"`},
		{"+5 * * * *", "", `minute "+5"`},
		{"0x5 * * * *", "", `minute "0x5"`},
		{"*5 * * * *", "", `minute "*5"`},
		{"1-2-3 * * * *", "", `minute "1-2-3"`},
		{"? * * * *", "", `minute "?"`},
		{"*/0 * * * *", "", `minute "*/0": a step is a number from 1 to 60;`},
		{"*/90 * * * *", "", "a step is a number from 1 to 60;"},
		{"*/ * * * *", "", "a step is a number from 1 to 60;"},
		{"*/2/3 * * * *", "", "a step is a number from 1 to 60;"},
		{"* */25 * * *", "", "a step is a number from 1 to 24;"},
		{"* 22-6 * * *", "", `hour "22-6": a range goes up: write 22-23,0-6;`},
		{"* 22-6/2 * * *", "", "a range goes up: write 22,0-6/2;"},
		{"* 21-6/4 * * *", "", "a range goes up: write 21,1-6/4;"},
		{"* 22-6/0 * * *", "", "a step is a number from 1 to 24;"},
		{"50-10/25 * * * *", "", "a range goes up: write 50;"},
		{"* * * * 7-1", "", "a range goes up: write 0-1;"},
		{"* * * * 7-6/3", "", "a range goes up: write 0-6/3;"},
		{"* * * * SAT-MON", "", "a range goes up: write SAT,0-MON;"},
		{"* * * DEC-JAN *", "", "a range goes up: write DEC,1;"},
		{"* * 25-5/3 * *", "", "a range goes up: write 25-31/3,3;"},
		{"@every 1m", "", `"@every 1m": an interval is no cron expression: want EVERY in milliseconds (--every 1m, every: 1m)`},
		{"0 9 * * 1-5 Europe/Berlin", "", `"0 9 * * 1-5 Europe/Berlin": the zone stands apart: TZ Europe/Berlin (--tz, tz:)`},
		{"0 0 9 * * 1-5 Europe/Berlin", "", "the zone stands apart: TZ Europe/Berlin"},
		{"@daily America/New_York", "", "the zone stands apart: TZ America/New_York"},
		{"0 9 * * 1-5 UTC", "", "the zone stands apart: TZ UTC"},
		{"CRON_TZ=Europe/Berlin 0 9 * * *", "", "the zone stands apart: TZ Europe/Berlin"},
		{"TZ=UTC 0 9 * * *", "", "the zone stands apart: TZ UTC"},
		{"* * * * MON/FRI", "", `day of week "MON/FRI"`},
		{"* * * NOV-FEB *", "", "a range goes up: write NOV-12,1-FEB;"},
		{"* * L-3 * *", "", `day of month "L-3"`},
		{"L * * * *", "", `minute "L"`},
		{"* * * * 5L", "", `day of week "5L"`},
		{"* * * * 5#6", "", `day of week "5#6": after # comes which one of the month, from 1 to 5, and before it one day;`},
		{"* * * * 5#0", "", "after # comes"},
		{"* * * * 1-5#2", "", "after # comes"},
		{"* * * * 5#", "", "after # comes"},
		{"* * * * *#1", "", "after # comes"},
		{strings.Repeat("1,", 200) + "1 * * * *", "", "cron expression of 409 bytes: want at most 256"},
		{strings.Repeat("x", 100) + " * * * *", "", `minute "` + strings.Repeat("x", 40) + `…"`},
		{"* * * * *", "Europe/Berln", `zone "Europe/Berln" is not in the time zone database: did you mean Europe/Berlin?`},
		{"* * * * *", "Berlin", "did you mean Europe/Berlin?"},
		{"* * * * *", "EUROPE/BERLIN", "did you mean Europe/Berlin?"},
		{"* * * * *", "Germany/Berlin", "did you mean Europe/Berlin?"},
		{"* * * * *", "America/NewYork", "did you mean America/New_York?"},
		{"* * * * *", "Xqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq", "want a name such as Europe/Berlin or UTC"},
		{"0 9 * * 1", "MON", `zone "MON" is not in the time zone database`},
		{"0 9 * * 1", "JAN-MAR", `zone "JAN-MAR" is not in`},
		{"* * * * *", "Local", `zone "Local" is not in`},
		{"* * * * *", "localtime", `zone "localtime" is not in`},
		{"* * * * *", "../etc/passwd", `is not in`},
		{"* * * * *", "posix/UTC", `is not in`},
		{"* * * * *", "Etc/../UTC", `is not in`},
		{"* * * * *", "Berlin\x1b", `zone "Berlin\x1b" is not in`},
		{"* * * * *", strings.Repeat("A", 65), "zone of 65 bytes: want at most 64"},
	} {
		spec, err := cron.At(test.expression, test.zone)
		if err == nil || !strings.Contains(err.Error(), test.want) || spec.String() != "" {
			t.Errorf("%q in %q: %v, want %s", test.expression, test.zone, err, test.want)
		}
	}
	for interval, want := range map[time.Duration]string{
		0: "want from 100ms to 87600h", -time.Hour: "want from 100ms", 99 * time.Millisecond: "interval 99ms: want from 100ms", 87601 * time.Hour: "want from 100ms",
		1500 * time.Microsecond * 100: "", 100*time.Millisecond + 1: "want whole milliseconds",
	} {
		if _, err := cron.Every(interval); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("every %v: %v, want %q", interval, err, want)
		}
	}
	for text, want := range map[string]string{
		"":                               `want "every" and a duration, or "cron", an expression and a zone`,
		"hourly":                         `repetition "hourly": want`,
		"every":                          `interval "": want a duration such as`,
		"every soon":                     `interval "soon": want a duration such as`,
		"every 1ms":                      "want from 100ms",
		"cron 0 9 * * 1-5 Europe/Berln":  `zone "Europe/Berln" is not`,
		"cron 0 9 * * 1-8 Europe/Berlin": `day of week "1-8"`,
		"cron UTC":                       `"UTC" has 1 fields`,
		"cron @dayly UTC":                `"@dayly": want`,
	} {
		if _, err := cron.Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// Each range that goes down, with each step, is refused with ranges that are taken and name the same numbers.
func TestWrappedRangesAreProposedAnew(t *testing.T) {
	t.Parallel()
	for place, f := range []struct{ low, size, stepUp int }{{0, 60, 7}, {0, 60, 11}, {0, 24, 1}, {1, 31, 3}, {1, 12, 1}, {0, 7, 1}} {
		low, size := f.low, f.size
		with := func(item string) string {
			words := strings.Fields("0 0 0 * * *")
			words[place] = item
			return strings.Join(words, " ")
		}
		for from := low; from < low+size; from++ {
			for to := low; to < from; to++ {
				for by := 1; by <= size; by += f.stepUp {
					if place == 5 && to == 0 {
						continue // to Sunday
					}
					item := fmt.Sprintf("%d-%d/%d", from, to, by)
					_, err := cron.At(with(item), "")
					if err == nil {
						t.Fatalf("%s is taken", with(item))
					}
					_, proposal, _ := strings.Cut(err.Error(), "write ")
					proposal, _, _ = strings.Cut(proposal, ";")
					if _, err := cron.At(with(proposal), ""); err != nil {
						t.Fatalf("%s: %v", item, err)
					}
					var want []int
					for n := from; n <= to+size; n += by {
						want = append(want, (n-low)%size+low)
					}
					if got := numbersOf(t, proposal); !slices.Equal(got, want) {
						t.Fatalf("%s: %s names %v, want %v", item, proposal, got, want)
					}
				}
			}
		}
	}
}

// numbersOf returns the numbers of a list of numbers, ranges and steps, in its order.
func numbersOf(t *testing.T, list string) (all []int) {
	t.Helper()
	for item := range strings.SplitSeq(list, ",") {
		low, high, by := 0, 0, 1
		if n, _ := fmt.Sscanf(item, "%d-%d/%d", &low, &high, &by); n == 0 {
			t.Fatalf("%s: no number", item)
		} else if n == 1 {
			high = low
		}
		for n := low; n <= high; n += by {
			all = append(all, n)
		}
	}
	return all
}

func TestZoneNames(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("zones.txt")
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(string(text)) {
		if err := cron.CheckZone(name); err != nil {
			t.Error(err)
		}
	}
}

func TestTextForm(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"every 5m0s":                         "every 5m0s",
		"every 90s":                          "every 1m30s",
		"every 100ms":                        "every 100ms",
		"cron 0 9 * * 1-5 Europe/Berlin":     "cron 0 9 * * 1-5 Europe/Berlin",
		"cron  0  9 *\t* 1-5":                "cron 0 9 * * 1-5 UTC",
		"cron 0 9 * * MON":                   "cron 0 9 * * MON UTC",
		"cron 0 0 9 * * MON":                 "cron 0 0 9 * * MON UTC",
		"cron 0 0 9 * * mon#1,fri":           "cron 0 0 9 * * mon#1,fri UTC",
		"cron 0 9 * * MON Japan":             "cron 0 9 * * MON Japan",
		"cron 0 9 * * 1 MST":                 "cron 0 9 * * 1 MST",
		"cron 0 0 9 * * SAT Etc/GMT+12":      "cron 0 0 9 * * SAT Etc/GMT+12",
		"cron @daily America/Port-au-Prince": "cron @daily America/Port-au-Prince",
		"cron @DAILY":                        "cron @DAILY UTC",
	} {
		spec, err := cron.Parse(text)
		if err != nil || spec.String() != want {
			t.Errorf("%q: %q (%v), want %q", text, spec, err, want)
		}
	}
	if _, ok := (&cron.Repetition{}).Next(time.Now()); ok || (cron.Spec{}).String() != "" {
		t.Error("the zero Spec has an occurrence, or a text")
	}
}
