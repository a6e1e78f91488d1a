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
	// pressureAge is how old the kernel's numbers of stalls may be.
	pressureAge = 2 * time.Second
	// longestStall is how much of a stall is not counted at most.
	longestStall = time.Minute
	// slowness is by how much more may pass where the kernel does not tell of stalls.
	slowness = 5
)

// Stopwatch measures time without that in which anything on the machine had to wait for a processor or a disk: a busy
// machine makes what is promised take longer, and breaks no promise.
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

// AtMost fails the test if more than limit has passed, but for up to a minute in which the machine was stalled.
func (s Stopwatch) AtMost(t testing.TB, limit time.Duration, what string) {
	t.Helper()
	s.Late(t, time.Since(s.began), limit, what)
}

// Late is AtMost for what was late by so much since the stopwatch was started.
func (s Stopwatch) Late(t testing.TB, took, limit time.Duration, what string) {
	t.Helper()
	if took <= limit {
		return
	}
	if stalled := s.stalls(limit); took-stalled > limit {
		t.Errorf("%s: it took %v, of which the machine was stalled for %v; want at most %v", what, took, stalled, limit)
	}
}

// AtLeast fails the test if took, the time between two things that have happened since the start, is less than limit by
// more than the machine was stalled: the first of them may have come late.
func (s Stopwatch) AtLeast(t testing.TB, took, limit time.Duration, what string) {
	t.Helper()
	if took >= limit {
		return
	}
	if stalled := s.stalls(limit); took+stalled < limit {
		t.Errorf("%s: it took %v, and the machine was stalled for %v; want at least %v", what, took, stalled, limit)
	}
}

// stalls returns for how long the machine has been stalled since the start. Where the kernel does not tell it is a multiple
// of limit.
func (s Stopwatch) stalls(limit time.Duration) time.Duration {
	<-time.After(pressureAge)
	stalled, known := stalledFor()
	if !known || !s.known {
		return (slowness - 1) * limit
	}
	return min(stalled-s.stalled, longestStall)
}

// Promptly is Eventually for what has to hold within limit, but for the time in which the machine is stalled, as a
// [Stopwatch] measures it.
func Promptly[C devserver.Condition](t testing.TB, limit time.Duration, cond C, msg string) {
	t.Helper()
	watch := StartStopwatch()
	if err := devserver.Until(context.WithoutCancel(t.Context()), limit+longestStall, cond); err != nil {
		t.Fatalf("%s: not within %v: %v", msg, limit, err)
	}
	watch.AtMost(t, limit, msg)
}

// stalledFor returns for how long some thread of the machine had to wait for a processor or a disk since the machine
// started. Linux tells, others do not.
func stalledFor() (total time.Duration, known bool) {
	for _, of := range []string{"cpu", "io"} {
		text, err := os.ReadFile("/proc/pressure/" + of)
		if err != nil {
			return 0, false
		}
		var ten, sixty, threeHundred float64
		var micros int64
		if _, err := fmt.Sscanf(string(text), "some avg10=%f avg60=%f avg300=%f total=%d", &ten, &sixty, &threeHundred, &micros); err != nil {
			return 0, false
		}
		total += time.Duration(micros) * time.Microsecond
	}
	return total, true
}
