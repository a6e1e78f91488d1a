package cron_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/cron"
)

var update = flag.Bool("update", false, "write testdata/golden.tsv by brute force")

const goldenFile = "testdata/golden.tsv"

// goldenHead begins the table.
const goldenHead = `# Made by brute force over minutes: go test ./internal/cron -run Golden -update
# zone, expression, an instant, and what follows it: up to three times within 40 days, or else the first one.
`

// row is a line of the table: the occurrences after an instant.
type row struct {
	zone, expression string
	after            time.Time
	next             []time.Time
}

// changes returns when the clock of a zone changes in a year. All do at a quarter of an hour.
func changes(location *time.Location, year int) (found []time.Time) {
	const step = 15 * time.Minute
	start := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
	_, before := start.Add(-step).In(location).Zone()
	for at := start; at.Year() == year; at = at.Add(step) {
		_, offset := at.In(location).Zone()
		if offset != before {
			found = append(found, at)
		}
		before = offset
	}
	return found
}

// scenes returns the rows of the table, without occurrences.
func scenes(t *testing.T) (rows []row) {
	t.Helper()
	add := func(location *time.Location, after time.Time, expressions ...string) {
		for _, expression := range expressions {
			rows = append(rows, row{zone: location.String(), expression: expression, after: after.In(location)})
		}
	}
	for _, zone := range []struct {
		name  string
		years []int
	}{
		{"America/New_York", []int{1986, 2007, 2026}},
		{"Europe/Berlin", []int{1980, 2026}},
		{"Australia/Lord_Howe", []int{1985, 2026}},
		{"America/Sao_Paulo", []int{1999, 2018}},
		{"Pacific/Apia", []int{2011}},
		{"Asia/Kathmandu", []int{1986}},
		{"UTC", nil},
	} {
		location := zoneOf(t, zone.name)
		for _, year := range zone.years {
			for _, change := range changes(location, year) {
				add(location, change.Add(-20*time.Hour), "0 0 * * *", "15 0 * * *", "30 1 * * *", "45 1,2 * * *",
					"30 2 * * *", "*/20 0-3 * * *",
					"30 23 * * *", "0 3 * * *")
				add(location, change.Add(-50*time.Minute), "*/20 * * * *", "0 */2 * * *", "30 0-23 * * *", "@hourly",
					"10 59/20 * * * *")
			}
		}
		add(location, time.Date(2026, 1, 30, 10, 20, 30, 0, time.UTC), "0 0 L * *", "0 12 L 2 *", "0 9 * * 5#2",
			"0 9 * * MON-FRI", "0 9 13 * FRI",
			"0 9 1,15 * *", "*/25 9-17/4 * JAN,MAR SUN", "@monthly", "@weekly", "0 9 31 * *", "0 9 */10 * 2",
			"30 0 9-18/4 * * *", "0 9 L * 1#1",
			"0,30 8-10 * * SAT-SUN", "@daily", "0 9 10/7 * *")
		add(location, time.Date(2024, 2, 27, 23, 59, 59, 999_000_000, time.UTC), "0 0 L * *", "0 12 L 2 *",
			"0 9 * 2 THU#5", "0 9 29 2 *")
	}
	add(zoneOf(t, "Europe/Berlin"), time.Date(2024, 12, 31, 22, 0, 0, 0, time.UTC), "@yearly", "59 23 31 12 *",
		"0 2 L 3 *", "*/20 * * * *", "0 12 * * *")
	return rows
}

// byBruteForce finds the next occurrences.
func (r *row) byBruteForce(t *testing.T) {
	b := newBrute(r.expression, zoneOf(t, r.zone))
	if r.next = b.next(r.after, r.after.AddDate(0, 0, 40), 3); r.next == nil {
		r.next = b.next(r.after, r.after.AddDate(8, 0, 1), 1)
	}
}

func (r *row) String() string {
	var next []string
	for _, at := range r.next {
		next = append(next, at.In(r.after.Location()).Format(time.RFC3339))
	}
	return fmt.Sprintf("%s\t%s\t%s\t%s\n", r.zone, r.expression, r.after.Format(time.RFC3339Nano),
		strings.Join(next, " "))
}

// golden returns the lines of the table in the file.
func golden(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(strings.TrimPrefix(string(text), goldenHead), "\n"), "\n")
}

// Some lines of the table, computed again, equal the file's.
func TestGoldenIsBruteForce(t *testing.T) {
	t.Parallel()
	const every = 12
	lines := golden(t)
	for i, r := range scenes(t) {
		if i%every > 0 {
			continue
		}
		r.byBruteForce(t)
		if want := strings.TrimSuffix(r.String(), "\n"); i >= len(lines) || lines[i] != want {
			t.Errorf("line %d of %s is not %q", i, goldenFile, want)
		}
	}
}

// The whole table, computed again, equals the file.
func TestGoldenIsBruteForceAtScale(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	table.WriteString(goldenHead)
	for _, r := range scenes(t) {
		r.byBruteForce(t)
		table.WriteString(r.String())
	}
	if *update {
		if err := os.WriteFile(goldenFile, []byte(table.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(goldenFile); err != nil || string(text) != table.String() {
		t.Errorf("%s is not what brute force makes (%v): run `go test ./internal/cron -run Golden -update`, and look "+
			"at the difference", goldenFile, err)
	}
}

func TestGolden(t *testing.T) {
	t.Parallel()
	lines := golden(t)
	if len(lines) < 200 {
		t.Errorf("the table has %d rows, want 200 at least", len(lines))
	}
	for _, line := range lines {
		cells := strings.Split(line, "\t")
		if len(cells) != 4 {
			t.Fatalf("%d cells: %q", len(cells), line)
		}
		spec, err := cron.At(cells[1], cells[0])
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		at := instant(t, cells[2])
		for want := range strings.FieldsSeq(cells[3]) {
			next, ok := (&cron.Repetition{Spec: spec}).Next(at)
			if !ok || !next.Equal(instant(t, want)) {
				t.Errorf("%s in %s, after %s: %s, want %s", cells[1], cells[0], at.In(spec.Location()),
					next.In(spec.Location()), want)
			}
			at = instant(t, want)
		}
	}
}

func zoneOf(t testing.TB, name string) *time.Location {
	t.Helper()
	location, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return location
}

func instant(t testing.TB, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}
