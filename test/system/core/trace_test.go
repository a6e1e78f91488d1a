package core_test

import (
	"strings"
	"testing"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/test/system"
)

// The trace in which a timer was set is in its events, as attributes and as headers, through a retry, a dead letter and
// a replay.
func TestTraces(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Env["TIMERD_RETRY"] = "*=100ms"
	s.Start()
	c := s.Collect()
	const one, other = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
	const payload = `{"traceparent":"` + one + `","tracestate":"a=b"}`
	want := map[string][2]string{"set": {other, ""}, "plain": {one, "a=b"}, "both": {other, ""}, "none": {}}
	s.Do("FCALL", "timer_set", 1, "shop:pay:callback:set", "p", "PX", system.Hour, "TRACE", other)
	s.Do("FCALL", "timer_set", 1, "shop:pay:callback:both", payload, "PX", 300, "TRACE", other)
	s.Do("FCALL", "timer_set", 1, "shop:pay:callback:none", "p", "PX", 300, "TRACE", "malformed")
	s.Do("SET", "shop:pay:callback:plain", payload, "PX", system.Soon)
	if out := s.OK("get", "shop:pay:callback:set"); !strings.Contains(out, "\ntrace    "+other+"\n") {
		t.Errorf("timerd get: %s", out)
	}
	if out := s.OK("get", "shop:pay:callback:set", "--json"); !strings.Contains(out, `"traceparent":"`+other+`"`) {
		t.Errorf("timerd get --json: %s", out)
	}
	s.Do("PEXPIRE", "shop:pay:callback:set", 300)
	check := func(e event.Event, header map[string][]string) {
		t.Helper()
		trace := want[e.Key.ID]
		if e.TraceParent != trace[0] || e.TraceState != trace[1] {
			t.Errorf("%s, attempt %d, has the trace %q, %q; want %q", e.Key, e.Attempt, e.TraceParent, e.TraceState,
				trace)
		}
		if got := strings.Join(header["traceparent"], "") + strings.Join(header["tracestate"],
			""); got != trace[0]+trace[1] {
			t.Errorf("%s, attempt %d, has the headers %v; want %q", e.Key, e.Attempt, header, trace)
		}
	}
	n := len(want)
	for attempt := 1; attempt <= 3; attempt++ { // the third is the replay
		for i, e := range s.Events(c, attempt*n)[(attempt-1)*n:] {
			m := c.All()[(attempt-1)*n+i]
			check(e, m.Header)
			if attempt < 3 {
				s.Retry(m)
			}
		}
		if attempt == 2 {
			for _, letter := range s.Letters(n) {
				check(letter, map[string][]string{"traceparent": {letter.TraceParent},
					"tracestate": {letter.TraceState}})
			}
			if out := s.OK("dead", "replay", "shop", "--yes"); !strings.HasSuffix(out, "\n4 replayed, 0 skipped\n") {
				t.Fatalf("dead replay: %s", out)
			}
		}
	}
	s.NoRequests()
	s.Settled()
}
