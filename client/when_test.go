package client

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever the fraction of a millisecond, a timer is never early, and less than a millisecond late.
func TestRandomTimesAreRoundedUp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(1, int64(20*365*24*time.Hour)).Draw(t, "delay"))
		w := After(d)
		if got := time.Duration(w.ms) * time.Millisecond; w.option != "PX" || got < d || got-d >= time.Millisecond {
			t.Errorf("After(%d ns) = %s %d", d, w.option, w.ms)
		}
		at := time.Unix(0, rapid.Int64Range(0, 1<<62).Draw(t, "instant"))
		w = At(at)
		if got := time.UnixMilli(w.ms); w.option != "PXAT" || got.Before(at) || got.Sub(at) >= time.Millisecond {
			t.Errorf("At(%v) = %s %d", at, w.option, w.ms)
		}
	})
}
