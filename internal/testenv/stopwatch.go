package testenv

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/devserver"
)

const (
	// pressureAge is the greatest age of the kernel's numbers of stalls.
	pressureAge = 2 * time.Second
	// longestStall limits the uncounted part of a stall.
	longestStall = time.Minute
	// slowness multiplies limits if the kernel does not report stalls.
	slowness = 5
)

// Stopwatch measures time without the stalls in which anything on the machine had to wait for a processor or a disk: a
// busy machine delays a promise, but does not break it.
type Stopwatch struct {
	began   time.Time
	stalled time.Duration
	known   bool
}

// StartStopwatch starts one.
func StartStopwatch() Stopwatch {
	stalled, known := stalledFor()
	return Stopwatch{began: time.Now(), stalled: stalled, known: known}
}

// AtMost fails the test if more than limit has passed, not counting up to a minute of stalls.
func (s Stopwatch) AtMost(t testing.TB, limit time.Duration, what string) {
	t.Helper()
	s.Late(t, time.Since(s.began), limit, what)
}

// Late is AtMost for a lateness measured since the start of the stopwatch.
func (s Stopwatch) Late(t testing.TB, took, limit time.Duration, what string) {
	t.Helper()
	if took <= limit {
		return
	}
	if stalled := s.stalls(limit); took-stalled > limit {
		t.Errorf("%s: it took %v, with the machine stalled for %v; want at most %v", what, took, stalled, limit)
	}
}

// AtLeast fails the test if took, the time between two things that have happened since the start, is less than limit by
// more than the stalls: the first of them may have come late.
func (s Stopwatch) AtLeast(t testing.TB, took, limit time.Duration, what string) {
	t.Helper()
	if took >= limit {
		return
	}
	if stalled := s.stalls(limit); took+stalled < limit {
		t.Errorf("%s: it took %v, and the machine was stalled for %v; want at least %v", what, took, stalled, limit)
	}
}

// stalls returns the machine's stalls since the start. If the kernel does not report them, it is a multiple of limit.
func (s Stopwatch) stalls(limit time.Duration) time.Duration {
	<-time.After(pressureAge)
	stalled, known := stalledFor()
	if !known || !s.known {
		return (slowness - 1) * limit
	}
	return min(stalled-s.stalled, longestStall)
}

// Promptly is Eventually for a condition that must hold within limit, not counting stalls, as in [Stopwatch].
func Promptly[C devserver.Condition](t testing.TB, limit time.Duration, cond C, msg string) {
	t.Helper()
	watch := StartStopwatch()
	if err := devserver.Until(context.WithoutCancel(t.Context()), limit+longestStall, cond); err != nil {
		t.Fatalf("%s: not within %v: %v", msg, limit, err)
	}
	watch.AtMost(t, limit, msg)
}

// stalledFor returns the time for which some thread had to wait for a processor or a disk since the machine's start; ok
// is false except on Linux.
func stalledFor() (total time.Duration, known bool) {
	for _, of := range []string{"cpu", "io"} {
		text, err := os.ReadFile("/proc/pressure/" + of)
		if err != nil {
			return 0, false
		}
		var ten, sixty, threeHundred float64
		var micros int64
		if _, err := fmt.Sscanf(string(text), "some avg10=%f avg60=%f avg300=%f total=%d", &ten, &sixty, &threeHundred,
			&micros); err != nil {
			return 0, false
		}
		total += time.Duration(micros) * time.Microsecond
	}
	return total, true
}
