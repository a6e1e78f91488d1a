package diag_test

import (
	"math"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/diag"
)

func TestDuration(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for want, d := range map[string]time.Duration{
		"0s": 0, "1ms": time.Millisecond, "4.5s": 4500 * time.Millisecond, "2m": 2 * time.Minute,
		"2m 40s": 160 * time.Second, "1h 5s": time.Hour + 5*time.Second,
		"1d": day, "40d 51m": 40*day + 51*time.Minute, "1d 2h 3m 4.25s": 26*time.Hour + 3*time.Minute +
			4250*time.Millisecond, "-2m": -2 * time.Minute,
	} {
		if got := diag.Duration(d); got != want {
			t.Errorf("%v is shown as %q, want %q", d, got, want)
		}
	}
	_ = diag.Duration(math.MinInt64) // has no positive counterpart
}
