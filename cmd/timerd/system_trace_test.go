package main

import (
	"strings"
	"testing"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
)

// The trace in which a timer was set is in its events, as attributes and as headers, through a retry, a dead letter and a replay.
func TestTraces(t *testing.T) {
	s := newSystem(t)
	s.env["TIMERD_RETRY"] = "*=100ms"
	s.start()
	c := s.collect()
	const one, other = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
	const payload = `{"traceparent":"` + one + `","tracestate":"a=b"}`
	want := map[string][2]string{"set": {other, ""}, "plain": {one, "a=b"}, "both": {other, ""}, "none": {}}
	s.do("FCALL", "timer_set", 1, "shop:pay:callback:set", "p", "PX", 3000, "TRACE", other)
	s.do("FCALL", "timer_set", 1, "shop:pay:callback:both", payload, "PX", 300, "TRACE", other)
	s.do("FCALL", "timer_set", 1, "shop:pay:callback:none", "p", "PX", 300, "TRACE", "malformed")
	s.do("SET", "shop:pay:callback:plain", payload, "PX", 300)
	testenv.SetVariables(t, s.env)
	if out := ok(t, "get", "shop:pay:callback:set"); !strings.Contains(out, "\ntrace    "+other+"\n") {
		t.Errorf("timerd get: %s", out)
	}
	if out := ok(t, "get", "shop:pay:callback:set", "--json"); !strings.Contains(out, `"traceparent":"`+other+`"`) {
		t.Errorf("timerd get --json: %s", out)
	}
	check := func(e event.Event, header map[string][]string) {
		t.Helper()
		trace := want[e.Key.ID]
		if e.TraceParent != trace[0] || e.TraceState != trace[1] {
			t.Errorf("%s, attempt %d, has the trace %q, %q; want %q", e.Key, e.Attempt, e.TraceParent, e.TraceState, trace)
		}
		if got := strings.Join(header["traceparent"], "") + strings.Join(header["tracestate"], ""); got != trace[0]+trace[1] {
			t.Errorf("%s, attempt %d, has the headers %v; want %q", e.Key, e.Attempt, header, trace)
		}
	}
	n := len(want)
	for attempt := 1; attempt <= 3; attempt++ { // the third is the replay
		for i, e := range s.events(c, attempt*n)[(attempt-1)*n:] {
			m := c.All()[(attempt-1)*n+i]
			check(e, m.Header)
			if attempt < 3 {
				s.retry(m)
			}
		}
		if attempt == 2 {
			for _, letter := range s.letters(n) {
				check(letter, map[string][]string{"traceparent": {letter.TraceParent}, "tracestate": {letter.TraceState}})
			}
			if out := ok(t, "dead", "replay", "shop", "--yes"); !strings.HasSuffix(out, "\n4 replayed, 0 skipped\n") {
				t.Fatalf("dead replay: %s", out)
			}
		}
	}
	s.noRequests()
	s.settled()
}
