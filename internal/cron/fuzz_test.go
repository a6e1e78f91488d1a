package cron_test

import (
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/cron"
)

// zones of the fuzz targets; their clocks are changed by half an hour, at midnight, by a day, by a quarter of an hour,
// and in Ramadan.
var zones = []string{
	"UTC", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia",
	"Asia/Kathmandu",
	"Africa/Casablanca", "America/Godthab", "Asia/Tehran", "Africa/Cairo", "America/St_Johns", "Europe/Dublin",
	"Antarctica/Troll",
}

// FuzzNext holds Next against brute force: it is later than its argument, it matches, and nothing between them does.
func FuzzNext(f *testing.F) {
	for i, expression := range []string{
		"* * * * *", "30 2 * * *", "0 0 * * *", "*/15 */2 * * *", "0 0 L * *", "0 9 * * 5#2", "0 9 13 * 5",
		"0,30 1-3 * * SUN", "*/7 59/20 1 * * *",
		"0 0 29 2 *", "@hourly", "@weekly", "15 0 1-7/2 JAN-MAR 1,FRI-SUN", "* * 1 * * *", "59 59 23 31 12 7",
	} {
		f.Add(expression, uint8(i), int64(1_774_746_000+86_400*i))
		f.Add(expression, uint8(i+1), int64(1_541_300_400))
		f.Add(expression, uint8(i+2), int64(1_325_239_200-7200*i))
	}
	f.Fuzz(func(t *testing.T, expression string, zone uint8, second int64) {
		name := zones[int(zone)%len(zones)]
		spec, err := cron.At(expression, name)
		if err != nil {
			return
		}
		// In these years the clocks of all zones are changed by minutes.
		after := time.Unix(160_000_000+(second%2_000_000_000+2_000_000_000)%2_000_000_000, 0).UTC()
		b := newBrute(expression, spec.Location())
		window := 36 * time.Hour
		if b.step == time.Second {
			window = time.Hour
		}
		next, ok := (&cron.Repetition{Spec: spec}).Next(after)
		first := b.next(after, after.Add(window), 1)
		switch {
		case !ok && len(first) > 0:
			t.Fatalf("%s in %s, after %s: nothing, want %s", expression, name, after.In(spec.Location()),
				first[0].In(spec.Location()))
		case !ok:
			return
		case !next.After(after):
			t.Fatalf("%s in %s, after %s: %s", expression, name, after, next)
		case len(first) == 0 && next.After(after.Add(window)):
			if before := next.Add(-window); before.After(after) {
				after = before
			}
			first = b.next(after, next, 1)
		}
		if len(first) == 0 || !next.Equal(first[0]) {
			t.Fatalf("%s in %s, after %s: %s, want %s", expression, name, after.In(spec.Location()),
				next.In(spec.Location()), first)
		}
	})
}

// FuzzParse checks that String writes a text that Parse reads, with the same meaning.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"every 5m0s", "every 100ms", "cron 0 9 * * 1-5 Europe/Berlin", "cron 0 0 9 * * MON", "cron @daily UTC",
		"cron @daily", "cron 0 0 L 2 5#2",
		"cron 0 9 * * 1-5 Local", "cron", "every", "cron 0 9 * * 1-5 ../x", "every 1e9h", "cron 60 * * * *",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		spec, err := cron.Parse(text)
		if err != nil {
			if spec.String() != "" || err.Error() == "" {
				t.Fatalf("%q: %v and %v", text, spec, err)
			}
			return
		}
		again, err := cron.Parse(spec.String())
		if err != nil || again.String() != spec.String() {
			t.Fatalf("%q is %q, and that is %q (%v)", text, spec, again, err)
		}
		now := time.Unix(1_774_746_000, 0)
		one, ok := (&cron.Repetition{Spec: spec}).Next(now)
		two, okToo := (&cron.Repetition{Spec: again}).Next(now)
		if ok != okToo || !one.Equal(two) {
			t.Fatalf("%q is due at %s, read again at %s", text, one, two)
		}
	})
}
