package core_test

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/timerd-io/timerd/test/system"
)

// A hold by two timerds, one of them stopped; the others' timers; cancellations; a resume at once.
func TestHoldAndResume(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	a, b := s.Start(), s.Start()
	c := s.Collect()
	began := time.Now().Truncate(time.Millisecond)
	b.Signal(syscall.SIGSTOP)
	// it waits for nobody for 5 s: then the exit code is 1
	s.Says(0, "hold shop --reason outage", "shop held", "no replica has the hold")
	noted := time.Now()
	held := s.SetMany("shop", 300, time.Second)
	others := s.SetMany("other", 100, time.Second)
	b.Signal(syscall.SIGCONT)
	s.Expect(c, others...)
	s.Holds("shop", 300)
	s.Says(0, "get shop:m:t:7", "state    held")
	s.Says(0, "ls shop --state held --limit 1", "held")
	s.SaysAtLast("status", "300 held", "shop")
	a.Measures(true, "timerd_held_timers 300")
	a.Measures(true, "timerd_holds 1")
	if v := s.HeldNow()[0]; v.Reason != "outage" || !strings.Contains(v.By, "@") || v.Until != nil ||
		v.Since.Before(began) || v.Since.After(noted) {
		t.Errorf("holds --json: %+v, want it since a time from %s to %s", v, began, noted)
	}
	s.Says(0, "cancel shop:m:t:7", "cancelled")
	held = slices.DeleteFunc(held, func(want string) bool { return want == "shop:m:t:7=7" })
	s.Says(1, "resume shop:m", "shop:m is not held")
	s.Says(2, "resume shop --rate 3", "want a number of timers and a unit")
	s.Says(0, "resume shop", "shop resumed", "no replica has the resume")
	for _, e := range s.Expect(c, append(held, others...)...) {
		if e.Key.App == "shop" && e.Time.Sub(e.Due) < 0 {
			t.Errorf("%s is early", e.ID)
		}
	}
	s.Says(0, "holds", "nothing is held")
	s.Settled()
	a.Stop()
	b.Stop()
	if !strings.Contains(a.Log.String(), "namespace on hold") || !strings.Contains(a.Log.String(), "reason=outage") {
		t.Errorf("the log does not say who held what, when and why:\n%s", a.Log)
	}
}
