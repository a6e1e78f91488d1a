package core_test

import (
	"strings"
	"testing"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/test/system"
)

// A postponed event comes again as the same attempt, whatever the policy allows, and all later messages of a timer name
// its first event: retries, postponed events, the dead letter, and those after its replay.
func TestPostponedAndOrigins(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Env["TIMERD_RETRY"] = "*=200ms"
	p := s.Start()
	c := s.Collect()
	long := "shop:pay:callback:" + strings.Repeat("ü", 300)
	origins := map[string]string{}
	for _, key := range []string{"shop:pay:callback:1", long} {
		s.Do("FCALL", "timer_set", 1, key, `{"order":1}`, "PX", 100)
	}
	for _, e := range s.Events(c, 2) {
		if e.Origin != "" || e.Attempt != 1 {
			t.Errorf("the first event of %s is %+v", e.Key, e)
		}
		origins[e.Key.String()] = e.ID
	}
	// follow asks for the last events again, and returns the new ones.
	seen := 2
	follow := func(attempt int, headers ...string) []event.Event {
		t.Helper()
		for _, m := range c.All()[seen-2:] {
			s.Retry(m, headers...)
		}
		seen += 2
		all := s.Events(c, seen)[seen-2:]
		for _, e := range all {
			if e.Origin != origins[e.Key.String()] || e.Attempt != attempt {
				t.Errorf("attempt %d with the origin %s, want %d, %s", e.Attempt, e.Origin, attempt,
					origins[e.Key.String()])
			}
		}
		return all
	}
	for range 3 {
		follow(1, event.PostponeHeader, "1", event.DelayHeader, "150ms")
	}
	follow(1, event.PostponeHeader, "1", event.DelayHeader, "0s")
	follow(2)
	for range 2 { // the last attempt
		follow(2, event.PostponeHeader, "1", event.DelayHeader, "10ms")
	}
	for _, m := range c.All()[seen-2:] {
		s.Retry(m)
	}
	for _, letter := range s.Letters(2) {
		if letter.Origin != origins[letter.Key.String()] || letter.DeadReason != event.ReasonExhausted {
			t.Errorf("the letter is %+v, want the origin %s", letter, origins[letter.Key.String()])
		}
	}
	if out := s.OK("dead", "replay", "shop", "--yes"); !strings.HasSuffix(out, "\n2 replayed, 0 skipped\n") {
		t.Fatalf("dead replay: %s", out)
	}
	seen += 2
	for _, e := range s.Events(c, seen)[seen-2:] {
		if e.Origin != origins[e.Key.String()] || e.Attempt != 1 {
			t.Errorf("the replay is %+v, want the origin %s", e, origins[e.Key.String()])
		}
	}
	follow(1, event.PostponeHeader, "1", event.DelayHeader, "10ms")
	s.NoRequests()
	s.Settled()
	_, metrics, err := p.Get("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"timerd_postponed_total 14\n", "timerd_retries_total 2\n"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %q", want)
		}
	}
	p.Stop()
}
