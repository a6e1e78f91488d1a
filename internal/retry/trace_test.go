package retry_test

import (
	"strings"
	"testing"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// A retry, a replay and a dead letter have the trace of their event; a trace in the payload is not stored twice.
func TestTraceOfRetries(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start("1h", nil)
	const one, other = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
	const payload = `{"traceparent":"` + one + `","tracestate":"a=b"}`
	for i, c := range []struct{ parent, state, payload, kept, keptState string }{
		{"", "", "p", "", ""},
		{one, "", "p", one, ""},
		{one, "a=b", "p", one, "a=b"},
		{one, "a=b", payload, "", ""},
		{other, "", payload, other, ""},
		{other, "a=b", `{"tracestate":"a=b"}`, other, ""},
		{one, "a=b", "", one, "a=b"}, // the payload was too large
	} {
		e := firedEvent(string(rune('a'+i)), 1, []byte(c.payload))
		e.TraceParent, e.TraceState = c.parent, c.state
		if c.payload == "" {
			e.Data, e.Status = nil, event.StatusTooLarge
		}
		f.request(retrySubject, e.AppendJSON(nil), "Timer-Delay", "1ms")
		firing := f.schedule.Claim(1, lease)[0]
		if firing.TraceParent != c.kept || firing.TraceState != c.keptState {
			t.Errorf("%+v: kept %q, %q", c, firing.TraceParent, firing.TraceState)
		}
		if parent, _ := event.Trace(firing.TraceParent, firing.Payload); parent != c.parent {
			t.Errorf("%+v: fires with the trace %q", c, parent)
		}
		if err := f.schedule.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, firing)); err != nil {
			t.Fatal(err)
		}
		e.Attempt = 2
		e.ID = keys.EventID(e.Key.String(), e.Due.UnixMilli(), 2)
		f.request(retrySubject, e.AppendJSON(nil))
		if letter := f.letters(i + 1)[i]; letter.TraceParent != c.parent || letter.TraceState != c.state {
			t.Errorf("%+v: the letter has the trace %q, %q", c, letter.TraceParent, letter.TraceState)
		}
	}
	f.waitEmpty()

	// One that is malformed is no reason to refuse the request.
	e := firedEvent("malformed", 1, []byte("p"))
	e.TraceParent, e.TraceState = strings.Repeat("x", 100_000), "y"
	f.request(retrySubject, e.AppendJSON(nil))
	f.waitEmpty()
	if p := f.pending()[e.Key.String()]; p.Attempt != 2 {
		t.Errorf("the retry is %+v", p)
	}
}
