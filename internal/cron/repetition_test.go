package cron_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/cron"
)

// parse reads a Spec that is well-formed.
func parse(t testing.TB, text string) cron.Spec {
	t.Helper()
	spec, err := cron.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func TestIntervalsKeepTheirGrid(t *testing.T) {
	t.Parallel()
	from := instant(t, "2026-11-20T09:00:00.050Z")
	r := &cron.Repetition{Spec: parse(t, "every 1.5s"), From: from, Until: from.Add(time.Minute)}
	for _, test := range []struct {
		after time.Duration
		want  time.Duration // negative: none
	}{
		{-time.Hour, 0}, {-time.Millisecond, 0}, {-1, 0}, {0, 1500 * time.Millisecond}, {1, 1500 * time.Millisecond},
		{1499 * time.Millisecond, 1500 * time.Millisecond}, {1500 * time.Millisecond, 3 * time.Second},
		{59 * time.Second, time.Minute}, {time.Minute, -1}, {time.Hour, -1},
	} {
		next, ok := r.Next(from.Add(test.after))
		if ok != (test.want >= 0) || ok && next.Sub(from) != test.want {
			t.Errorf("%v after the beginning: %v %v, want %v", test.after, next.Sub(from), ok, test.want)
		}
	}
	if next, ok := (&cron.Repetition{Spec: parse(t, "every 5m")}).Next(from); !ok ||
		!next.Equal(instant(t, "2026-11-20T09:05:00Z")) {
		t.Errorf("without a beginning: %v %v", next, ok)
	}
}

func TestCronBeginsAndEnds(t *testing.T) {
	t.Parallel()
	day := func(n int) time.Time { return time.Date(2026, 11, n, 9, 0, 0, 0, time.UTC) }
	r := &cron.Repetition{Spec: parse(t, "cron 0 9 * * *"), From: day(10), Until: day(12)}
	for after, want := range map[int]int{1: 10, 9: 10, 10: 11, 11: 12, 12: 0, 20: 0} {
		if next, ok := r.Next(day(after)); ok != (want > 0) || ok && !next.Equal(day(want)) {
			t.Errorf("after day %d: %v %v, want day %d", after, next, ok, want)
		}
	}
}

func TestNextOccurrence(t *testing.T) {
	t.Parallel()
	const minute = time.Minute
	at := func(d time.Duration) time.Time { return time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC).Add(d) }
	for _, test := range []struct {
		name       string
		repetition cron.Repetition
		last, now  time.Duration
		fired      int64
		due        time.Duration // negative: it is over
		skipped    int64
	}{
		{"in time", cron.Repetition{}, 0, time.Second, 1, 5 * minute, 0},
		{"in the millisecond of the next", cron.Repetition{}, 0, 5 * minute, 1, 5 * minute, 0},
		{"a moment after the next", cron.Repetition{}, 0, 5*minute + time.Millisecond, 1, 10 * minute, 1},
		{"an hour later", cron.Repetition{}, 0, 62 * minute, 1, 65 * minute, 12},
		{"an hour later, the last quarter counts", cron.Repetition{CatchUp: 15 * minute}, 0, 62 * minute, 1,
			50 * minute, 9},
		{"the next of those", cron.Repetition{CatchUp: 15 * minute}, 50 * minute, 62 * minute, 2, 55 * minute, 0},
		{"the edge of what counts", cron.Repetition{CatchUp: 12 * minute}, 0, 62 * minute, 1, 50 * minute, 9},
		{"all counts", cron.Repetition{CatchUp: time.Hour}, 0, 62 * minute, 1, 5 * minute, 0},
		{"the clock went back", cron.Repetition{}, 0, -time.Hour, 1, 5 * minute, 0},
		{"one is left", cron.Repetition{Times: 3}, 0, time.Second, 2, 5 * minute, 0},
		{"none is left", cron.Repetition{Times: 3}, 0, time.Hour, 3, -1, 0},
		{"the end lies ahead", cron.Repetition{Until: at(5 * minute)}, 0, time.Second, 1, 5 * minute, 0},
		{"the end has come", cron.Repetition{Until: at(5*minute - 1)}, 0, time.Second, 1, -1, 0},
		{"the end was missed", cron.Repetition{Until: at(20 * minute)}, 0, time.Hour, 1, -1, 4},
		{"the end was missed, but not by much", cron.Repetition{Until: at(20 * minute), CatchUp: 45 * minute}, 0,
			time.Hour, 1, 15 * minute, 2},
		{"it begins later", cron.Repetition{From: at(time.Hour)}, 0, 2 * minute, 0, time.Hour, 0},
		{"its beginning was missed", cron.Repetition{From: at(time.Hour)}, 0, 61 * minute, 0, 65 * minute, 1},
	} {
		for _, text := range []string{"every 5m", "cron */5 * * * *", "cron */5 0-23 * * *"} {
			r := test.repetition
			r.Spec = parse(t, text)
			step := r.After(at(test.last), test.fired, at(test.now))
			want := cron.Step{Skipped: test.skipped}
			if test.due >= 0 {
				want.Due = at(test.due)
			}
			if !step.Due.Equal(want.Due) || step.Skipped != want.Skipped {
				t.Errorf("%s, %s: %v and %d skipped, want %v and %d", text, test.name, step.Due, step.Skipped, want.Due,
					want.Skipped)
			}
		}
	}
}

// TestSkippedOccurrencesAgreeWithCounting compares After with counting one by one, around the changes of the clocks.
func TestSkippedOccurrencesAgreeWithCounting(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(15, 1))
	changed := map[string][]time.Time{}
	for _, zone := range zones {
		for _, year := range []int{1986, 2011, 2018, 2026, 2039} {
			changed[zone] = append(changed[zone], changes(zoneOf(t, zone), year)...)
		}
	}
	texts := []string{
		"*/5 * * * *", "*/10 1-3 * * *", "0,30 2 * * *", "0 0 * * *", "15 0,23 * * *", "30 1 L * 5#2",
		"*/20 10 9/3 * * *", "0 */2 * * 1-5", "10 0 30 12 *",
	}
	for range 3000 {
		zone := zones[random.IntN(len(zones))]
		spec := parse(t, fmt.Sprintf("cron %s %s", texts[random.IntN(len(texts))], zone))
		last := time.Unix(300_000_000+random.Int64N(1_900_000_000), random.Int64N(1e9))
		if changes := changed[zone]; random.IntN(4) > 0 && len(changes) > 0 {
			last = changes[random.IntN(len(changes))].Add(-time.Duration(random.Int64N(int64(60 * time.Hour))))
			if random.IntN(4) == 0 {
				last = changes[random.IntN(len(changes))].Add(time.Duration(random.IntN(5)-3) * time.Second)
			}
		}
		now := last.Add(time.Duration(random.Int64N(int64(100 * time.Hour))))
		r := &cron.Repetition{Spec: spec, CatchUp: time.Duration(random.IntN(3)) * time.Duration(
			random.Int64N(int64(50*time.Hour)))}
		if random.IntN(3) == 0 {
			r.Until = last.Add(time.Duration(random.Int64N(int64(120 * time.Hour))))
		}
		oldest := now.Add(-r.CatchUp).Truncate(time.Millisecond)
		var want cron.Step
		for at := last; ; {
			next, ok := r.Next(at)
			if !ok {
				break
			}
			if !next.Before(oldest) {
				want.Due = next
				break
			}
			at = next
			want.Skipped++
		}
		if got := r.After(last, 1, now); got != want {
			t.Fatalf("%s, last at %s, now %s, catching up %v, until %v: %v, want %v", spec, last.UTC(), now.UTC(),
				r.CatchUp, r.Until, got, want)
		}
	}
}

// TestMissedForYears has numbers that nobody could count one by one in this time.
func TestMissedForYears(t *testing.T) {
	t.Parallel()
	last := instant(t, "1976-01-01T00:00:00Z")
	now := instant(t, "2026-01-01T00:00:00Z")
	seconds := int64(now.Sub(last) / time.Second)
	for text, want := range map[string]int64{
		"every 100ms":                   10*seconds - 1,
		"cron * * * * * * Asia/Tokyo":   seconds - 1,
		"cron * * * * * * Europe/Paris": seconds - 1,
		"cron 0 0 0-23 * * * UTC":       seconds/3600 - 1,
		"cron 0 12 29 2 * UTC":          13,
	} {
		r := &cron.Repetition{Spec: parse(t, text), From: last}
		if step := r.After(last, 1, now); step.Skipped != want || step.Due.Before(now) {
			t.Errorf("%s: %d skipped, want %d; then %v", text, step.Skipped, want, step.Due)
		}
	}
	r := &cron.Repetition{Spec: parse(t, "cron * * * * * * Europe/Berlin")}
	if step := r.After(time.Unix(0, 0), 1, instant(t, "9999-12-31T23:59:59Z")); step.Skipped != 253_402_300_798 ||
		step.Due.IsZero() {
		t.Errorf("to the end of time: %v", step)
	}
}

func BenchmarkNext(b *testing.B) {
	now := instant(b, "2026-11-20T09:00:00.123Z")
	for _, text := range []string{
		"every 5m", "cron * * * * *", "cron * * * * * Europe/Berlin", "cron 0 9 * * 1-5 Europe/Berlin",
		"cron 0 0 29 2 * America/New_York", "cron 0 0 30 2 * UTC",
	} {
		b.Run(text, func(b *testing.B) {
			r := &cron.Repetition{Spec: parse(b, text)}
			for b.Loop() {
				r.Next(now)
			}
		})
	}
}

// BenchmarkAfter has a year missed.
func BenchmarkAfter(b *testing.B) {
	now := instant(b, "2026-11-20T09:00:00.123Z")
	for _, text := range []string{"every 100ms", "cron * * * * * * Europe/Berlin", "cron 0 9 * * 1-5 Europe/Berlin"} {
		b.Run(text, func(b *testing.B) {
			r := &cron.Repetition{Spec: parse(b, text)}
			for b.Loop() {
				r.After(now.AddDate(-1, 0, 0), 1, now)
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	for _, text := range []string{"every 5m", "cron 0 9 * * 1-5 UTC", "cron 0 9 * * 1-5 Europe/Berlin"} {
		b.Run(text, func(b *testing.B) {
			for b.Loop() {
				if _, err := cron.Parse(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
