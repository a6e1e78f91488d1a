package cron_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/cron"
	"github.com/timerd-io/timerd/internal/testenv"
)

// Each expression is taken or refused as the table says. TestLibraryReadsExpressionsAsGoDoes holds the library's
// grammar to it.
func TestExpressions(t *testing.T) {
	t.Parallel()
	for _, c := range testenv.CronCases(t, "testdata/expressions.jsonl") {
		spec, err := cron.At(c.Expression, c.Zone)
		switch {
		case c.Fault == "" && err != nil:
			t.Errorf("%q in %q: %v", c.Expression, c.Zone, err)
		case c.Fault != "" && (err == nil || !strings.Contains(err.Error(), c.Fault) || spec.String() != ""):
			t.Errorf("%q in %q: %v, want %s", c.Expression, c.Zone, err, c.Fault)
		}
		if err == nil {
			continue
		}
		if proposed := c.Proposed(err); proposed != "" {
			if _, err := cron.At(proposed, ""); err != nil {
				t.Errorf("%q: the proposal %q is refused: %v", c.Expression, proposed, err)
			}
		}
	}
}

func TestBoundsOfRepetitions(t *testing.T) {
	t.Parallel()
	for interval, want := range map[time.Duration]string{
		0: "want from 100ms to 87600h", -time.Hour: "want from 100ms",
		99 * time.Millisecond: "interval 99ms: want from 100ms", 87601 * time.Hour: "want from 100ms",
		1500 * time.Microsecond * 100: "", 100*time.Millisecond + 1: "want whole milliseconds",
	} {
		if _, err := cron.Every(interval); (err == nil) != (want == "") || err != nil &&
			!strings.Contains(err.Error(), want) {
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
	for place, f := range []struct{ low, size, stepUp int }{{0, 60, 7}, {0, 60, 11}, {0, 24, 1}, {1, 31, 3}, {1, 12, 1},
		{0, 7, 1}} {
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
