package faults_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/test/system"
)

func TestWithoutEventsOnPurpose(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Do("CONFIG", "SET", "notify-keyspace-events", "")
	s.Start("TIMERD_KEYSPACE_EVENTS=off", "TIMERD_SWEEP_INTERVAL=200ms")
	c := s.Collect()
	// Audits take a tenth of the time: after one that a busy machine had slowed down, the next may come seconds later.
	s.Do("SET", "a:b:c:plain", "p", "PX", 15_000)
	s.Do("FCALL", "timer_set", 1, "a:b:c:set", "s", "PX", 100)
	s.Expect(c, "a:b:c:plain=p", "a:b:c:set=s")
	if got := s.Do("CONFIG", "GET", "notify-keyspace-events"); strings.Contains(fmt.Sprint(got), "K") {
		t.Errorf("timerd switched events on: %v", got)
	}
}
