package notify_test

import (
	"testing"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/notify"
	"github.com/timerd-io/timerd/schedule"
)

// An event has the trace set with its timer, or else its payload's, also as headers. Other events have no such headers.
func TestEventsHaveTheirTraces(t *testing.T) {
	t.Parallel()
	const one = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	const other = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
	server := testenv.NATS(t)
	r := start(t, server, server.URL(), nil, func(*notify.Publisher) {})
	collector := testenv.Collect(t, r.js, "TIMERS")
	payload := `{"traceparent":"` + one + `","tracestate":"a=b"}`
	want := map[string][2]string{
		"a:b:c:none": {}, "a:b:c:set": {other, ""}, "a:b:c:payload": {one, "a=b"}, "a:b:c:both": {other, ""},
		"a:b:c:last":    {},
		"a:b:c:retried": {other, "c=d"}, "a:b:c:missing": {one, "c=d"}, "a:b:c:bad": {},
	}
	all := []schedule.Firing{
		firing(parseKey(t, "a:b:c:none"), `{"order":42}`), firing(parseKey(t, "a:b:c:set"), "p"),
		firing(parseKey(t, "a:b:c:payload"), payload),
		firing(parseKey(t, "a:b:c:both"), payload), firing(parseKey(t, "a:b:c:retried"), payload),
		firing(parseKey(t, "a:b:c:missing"), ""),
		firing(parseKey(t, "a:b:c:bad"), `{"traceparent":"x","tracestate":"a=b"}`),
		firing(parseKey(t, "a:b:c:last"), "p"),
	}
	all[1].TraceParent, all[3].TraceParent = other, other
	all[4].TraceParent, all[4].TraceState = other, "c=d"
	all[5].TraceParent, all[5].TraceState, all[5].Status, all[5].Payload = one, "c=d", schedule.PayloadMissing, nil
	r.publish(t, all...)
	checkStream(t, collector, all)
	for _, m := range collector.All() {
		e, err := event.Parse(m.Data)
		trace := want[e.Key.String()]
		if err != nil || e.TraceParent != trace[0] || e.TraceState != trace[1] {
			t.Errorf("%s has the trace %q, %q, %v; want %q", e.Key, e.TraceParent, e.TraceState, err, trace)
		}
		headers := 2
		for i, name := range []string{"traceparent", "tracestate"} {
			if got := m.Header[name]; trace[i] == "" && got != nil || trace[i] != "" &&
				(len(got) != 1 || got[0] != trace[i]) {
				t.Errorf("%s has the header %s: %q, want %q", e.Key, name, got, trace[i])
			}
			if trace[i] != "" {
				headers++
			}
		}
		if len(m.Header) != headers {
			t.Errorf("%s has the headers %v", e.Key, m.Header)
		}
	}
}
