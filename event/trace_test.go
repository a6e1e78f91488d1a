package event_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/event"
)

const (
	aTrace  = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	another = "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
)

func TestTrace(t *testing.T) {
	t.Parallel()
	members := func(parent, state string) string {
		return fmt.Sprintf(`{"traceparent":%q,"tracestate":%q}`, parent, state)
	}
	for _, c := range []struct{ given, payload, parent, state string }{
		{"", "", "", ""},
		{"", `{"order":42}`, "", ""},
		{"", `{"traceparent":"` + aTrace + `"}`, aTrace, ""},
		{"", `{"\u0074raceparent":"` + aTrace + `","x":[{}]}`, aTrace, ""},
		{"", members(aTrace, "congo=t61rcWkgMzE"), aTrace, "congo=t61rcWkgMzE"},
		{"", members(aTrace, "rojo=00f067aa0ba902b7, tenant@congo=t61 rcWk,,"), aTrace,
			"rojo=00f067aa0ba902b7, tenant@congo=t61 rcWk,,"},
		{"", members(aTrace, "bad"), aTrace, ""},
		{"", members("bad", "a=b"), "", ""},
		{"", `{"tracestate":"a=b"}`, "", ""},
		{"", `{"traceparent":5,"tracestate":"a=b"}`, "", ""},
		{"", `{"x":{"traceparent":"` + aTrace + `"}}`, "", ""},
		{"", `["traceparent","` + aTrace + `"]`, "", ""},
		{"", `{"traceparent":"` + aTrace + `"`, "", ""},
		{"", "{\"traceparent\":\"" + aTrace + "\",\"x\":\"\xff\"}", "", ""},
		{aTrace, "p", aTrace, ""},
		{aTrace, members(another, "a=b"), aTrace, ""},
		{aTrace, members("bad", "a=b"), aTrace, ""},
		{aTrace, members(aTrace, "a=b"), aTrace, "a=b"},
		{aTrace, `{"tracestate":"a=b"}`, aTrace, "a=b"},
		{"bad", members(aTrace, "a=b"), "", ""},
	} {
		if parent, state := event.Trace(c.given, []byte(c.payload)); parent != c.parent || state != c.state {
			t.Errorf("%q with %.120q: %q, %q; want %q, %q", c.given, c.payload, parent, state, c.parent, c.state)
		}
	}
}

// Malformed parts of a trace are left out, and cost no event.
func TestTraceTravels(t *testing.T) {
	t.Parallel()
	e := sample()
	e.TraceParent, e.TraceState = aTrace, "a=b,c=d"
	if got, want := string(e.AppendJSON(nil)),
		`,"traceparent":"`+aTrace+`","tracestate":"a=b,c=d","trigger":`; !strings.Contains(got, want) {
		t.Errorf("got %s, want %s in it", got, want)
	}
	if got := reparse(t, e); got.TraceParent != aTrace || got.TraceState != "a=b,c=d" {
		t.Errorf("got %+v", got)
	}
	for _, parent := range []string{
		"", "x", aTrace + "-x", aTrace[:54], strings.ToUpper(aTrace), "ff" + aTrace[2:],
		strings.Replace(aTrace, "-", "_", 1),
		"00-" + strings.Repeat("0", 32) + aTrace[35:], aTrace[:36] + strings.Repeat("0", 16) + "-01", aTrace[:54] + "g",
		strings.Repeat("a", 55), strings.Repeat("é", 10_000),
	} {
		e.TraceParent = parent
		if got := reparse(t, e); got.TraceParent+got.TraceState != "" {
			t.Errorf("%.60q: got %q, %q", parent, got.TraceParent, got.TraceState)
		}
	}
	many := strings.TrimSuffix(strings.Repeat("a=b,", 32), ",")
	for state, kept := range map[string]bool{
		"0a_-*/@=!~ b": true, many: true, "a= b": true, many + ",a=b": false, "A=b": false, "=b": false, "a=": false,
		"a": false, "a=b=c": false, "a=\x01": false,
		"a=é": false, "a=" + strings.Repeat("b", 256): true, "a=" + strings.Repeat("b", 257): false,
		strings.Repeat("a", 257) + "=b": false, strings.Repeat("a=bbbbbbbbbbbbbbbbbbbb,", 30): false,
	} {
		e.TraceParent, e.TraceState = aTrace, state
		if got := reparse(t, e); got.TraceParent != aTrace || (got.TraceState == state) != kept || !kept &&
			got.TraceState != "" {
			t.Errorf("%.60q: got %q, want it kept: %v", state, got.TraceState, kept)
		}
	}
	text := strings.Replace(string(sample().AppendJSON(nil)), `"maxattempts":16,`,
		`"maxattempts":16,"traceparent":{},"tracestate":7,`, 1)
	if got, err := event.Parse([]byte(text)); err != nil || got.TraceParent+got.TraceState != "" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestLettersHaveTheTrace(t *testing.T) {
	t.Parallel()
	e := sample()
	fresh := event.FreshLetterID(e, 1)
	e.TraceParent, e.TraceState, e.DeadReason = aTrace, "a=b", event.ReasonExhausted
	if got := event.FreshLetterID(e, 1); got != fresh {
		t.Error("the fresh id of a letter depends on its trace, which those of earlier versions do not have")
	}
	for m := range event.DeadLetter("timers", e) {
		got, err := event.Parse(m.Data)
		if err != nil || got.TraceParent != aTrace || got.TraceState != "a=b" || m.Header["traceparent"][0] != aTrace ||
			m.Header["tracestate"][0] != "a=b" {
			t.Errorf("letter %s with headers %v", m.Data, m.Header)
		}
	}
	e.TraceState = ""
	header := map[string][]string{"traceparent": {another}, "tracestate": {"x=y"}, "else": {"stays"}}
	if e.SetTraceHeaders(header); len(header) != 2 || header["traceparent"][0] != aTrace {
		t.Errorf("headers %v", header)
	}
}
