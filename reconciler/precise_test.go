package reconciler

import (
	"testing"
	"time"
)

// Short sleeps are never too short, even without a precise timer.
func TestPreciseTimerNeverSleepsTooShort(t *testing.T) {
	t.Parallel()
	precise, err := newPreciseTimer()
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range map[string]*preciseTimer{"precise": precise, "without a timer": nil} {
		for _, d := range []time.Duration{-time.Second, 0, 1, 50 * time.Microsecond, time.Millisecond,
			5 * time.Millisecond} {
			began := time.Now()
			n.sleep(d)
			if slept := time.Since(began); slept < d {
				t.Errorf("%s: slept %s instead of %s", name, slept, d)
			}
		}
	}
	if err := precise.close(); err != nil {
		t.Error(err)
	}
	began := time.Now()
	precise.sleep(time.Millisecond)
	if slept := time.Since(began); slept < time.Millisecond {
		t.Errorf("closed: slept %s instead of 1ms", slept)
	}
}
