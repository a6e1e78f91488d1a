package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
)

// What was postponed comes again as the same attempt, whatever the policy allows, and all that comes of a timer names its first
// event: retries, postponed events, the dead letter, and what comes of its replay.
func TestPostponedAndOrigins(t *testing.T) {
	s := newSystem(t)
	s.env["TIMERD_RETRY"] = "*=200ms"
	p := s.start()
	c := s.collect()
	long := "shop:pay:callback:" + strings.Repeat("ü", 300)
	origins := map[string]string{}
	for _, key := range []string{"shop:pay:callback:1", long} {
		s.do("FCALL", "timer_set", 1, key, `{"order":1}`, "PX", 100)
	}
	for _, e := range s.events(c, 2) {
		if e.Origin != "" || e.Attempt != 1 {
			t.Errorf("the first event of %s is %+v", e.Key, e)
		}
		origins[e.Key.String()] = e.ID
	}
	// follow asks for the last events again, and returns what comes.
	seen := 2
	follow := func(attempt int, headers ...string) []event.Event {
		t.Helper()
		for _, m := range c.All()[seen-2:] {
			s.retry(m, headers...)
		}
		seen += 2
		all := s.events(c, seen)[seen-2:]
		for _, e := range all {
			if e.Origin != origins[e.Key.String()] || e.Attempt != attempt {
				t.Errorf("attempt %d with the origin %s, want %d, %s", e.Attempt, e.Origin, attempt, origins[e.Key.String()])
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
		s.retry(m)
	}
	for _, letter := range s.letters(2) {
		if letter.Origin != origins[letter.Key.String()] || letter.DeadReason != event.ReasonExhausted {
			t.Errorf("the letter is %+v, want the origin %s", letter, origins[letter.Key.String()])
		}
	}
	testenv.SetVariables(t, s.env)
	if out := ok(t, "dead", "replay", "shop", "--yes"); !strings.HasSuffix(out, "\n2 replayed, 0 skipped\n") {
		t.Fatalf("dead replay: %s", out)
	}
	seen += 2
	for _, e := range s.events(c, seen)[seen-2:] {
		if e.Origin != origins[e.Key.String()] || e.Attempt != 1 {
			t.Errorf("the replay is %+v, want the origin %s", e, origins[e.Key.String()])
		}
	}
	follow(1, event.PostponeHeader, "1", event.DelayHeader, "10ms")
	s.noRequests()
	s.settled()
	_, metrics, err := p.get("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"timerd_postponed_total 14\n", "timerd_retries_total 2\n"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %q", want)
		}
	}
	p.stop()
}

// Two timerds, of which one is killed at a time, and a hold: what is postponed comes once for each event.
func TestPostponedThroughCrashes(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.env["TIMERD_RETRY"] = "*=1s"
	first, second := s.start(), s.start()
	c := s.collect()
	const timers, rounds = 20, 4
	for i := range timers {
		s.do("FCALL", "timer_set", 1, fmt.Sprintf("shop:pay:callback:%d", i), i, "PX", 100)
	}
	origins := map[string]string{}
	for _, e := range s.events(c, timers) {
		origins[e.Key.String()] = e.ID
	}
	for round := range rounds {
		if round == 2 {
			s.says(0, "hold shop")
		}
		for _, m := range c.All()[round*timers:] {
			for range 3 {
				s.retry(m, event.PostponeHeader, "1", event.DelayHeader, "300ms")
			}
		}
		switch round {
		case 0:
			first.kill()
			first = s.start()
		case 1:
			second.kill()
			second = s.start()
		case 2:
			s.noRequests()
			s.holds("shop", timers)
			if n := c.Len(); n != (round+1)*timers {
				t.Errorf("%d events under a hold, want %d", n, (round+1)*timers)
			}
			s.says(0, "resume shop --shift")
		}
		keys := map[string]bool{}
		for _, e := range s.events(c, (round+2)*timers)[(round+1)*timers:] {
			keys[e.Key.String()] = true
			if e.Attempt != 1 || e.Origin != origins[e.Key.String()] {
				t.Errorf("round %d: %+v, want attempt 1 and the origin %s", round, e, origins[e.Key.String()])
			}
		}
		if len(keys) != timers {
			t.Errorf("round %d: events of %v", round, slices.Sorted(maps.Keys(keys)))
		}
	}
	s.noRequests()
	s.settled()
	c.Stays((rounds+1)*timers, 100*time.Millisecond)
}
