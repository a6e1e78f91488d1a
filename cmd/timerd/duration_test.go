package main

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/diag"
)

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "1h30m": 90 * time.Minute, "250ms": 250 * time.Millisecond, "0s": 0,
		"-5s": -5 * time.Second,
		"30d": 30 * day, "1d12h": 36 * time.Hour, "1.5d": 36 * time.Hour, "40d 51m": 40*day + 51*time.Minute,
		" 2d  3h 4.5s ": 51*time.Hour + 4500*time.Millisecond,
		"-30d":          -30 * day, "-1d12h": -36 * time.Hour, "0d": 0, "3650d": 3650 * day,
	} {
		if got, err := admin.ParseDuration(text); err != nil || got != want {
			t.Errorf("%q is %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", " ", "d", "30", "soon", "30D", "1w", "d1h", "1hd", "1h30d", "1d2d", "1d-5h", "1d+5h", "1d5", "--1d",
		"1..5d", "1 d d", "200000d", "106751d24h", "1e3d",
	} {
		if got, err := admin.ParseDuration(text); err == nil {
			t.Errorf("%q is %v, want an error", text, got)
		}
	}
}

func TestShowAbout(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"9.123s": 9123456 * time.Microsecond, "1m 1s": 60700 * time.Millisecond, "1d": day + 29*time.Second,
		"40d 51m": 40*day + 50*time.Minute + 59*time.Second,
		"0s":      400 * time.Microsecond, "59m 59s": time.Hour - time.Second,
		"over 292 years": time.Until(time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)),
	} {
		if got := showAbout(d); got != want {
			t.Errorf("%v is about %q, want %q", d, got, want)
		}
	}
}

// A shown duration can be read again.
func TestDurationsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Min(-math.MaxInt64).Draw(t, "d"))
		if got, err := admin.ParseDuration(diag.Duration(d)); err != nil || got != d {
			t.Errorf("%v is shown as %q, which is read as %v, %v", d, diag.Duration(d), got, err)
		}
	})
}
