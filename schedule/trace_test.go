package schedule_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func TestTraceStaysWithItsTimer(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("FCALL", "timer_set", 1, k, "p", "PX", 60000, "trace", trace, "LATE", 5, "ATTEMPT", 2)
	record := "2;L=5;T=" + trace + ":p"
	if got := x.record(k); got != record {
		t.Errorf("the record is %q, want %q", got, record)
	}
	x.do("PEXPIRE", k, 90000)
	x.observe(touched(k))
	if got := fmt.Sprint(x.do("FCALL_RO", "timer_get", 1, k)); !strings.HasSuffix(got,
		" payload p state pending late 5 traceparent "+trace+"]") {
		t.Errorf("timer_get: %s", got)
	}
	x.do("ZADD", keys.Single.Due(), x.redisNow(), k)
	x.do("DEL", k)
	f := x.claims(k + " deadline p")[0]
	if f.TraceParent != trace || f.TraceState != "" || f.Attempt != 2 {
		t.Errorf("claimed %+v", f)
	}
	if got := fmt.Sprint(x.do("FCALL_RO", "timer_get", 1, k)); !strings.HasSuffix(got,
		" state firing late 5 traceparent "+trace+"]") {
		t.Errorf("timer_get of the firing: %s", got)
	}

	x.do("FCALL", "timer_set", 1, k, "p", "PX", 60000, "TRACE", trace)
	x.do("SET", k, "new", "PX", 60000)
	x.observe(touched(k))
	if got := x.record(k); got != ":new" {
		t.Errorf("the record of a new timer is %q, want %q", got, ":new")
	}
}

// A malformed traceparent is left out, and a record without options is unchanged.
func TestMalformedTraces(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	for _, text := range []string{
		"", "x", trace + "-x", trace[:54], strings.ToUpper(trace), "ff" + trace[2:],
		strings.Replace(trace, "-", ":", 1), trace[:54] + "g",
		"00-" + strings.Repeat("0", 32) + trace[35:], trace[:36] + strings.Repeat("0", 16) + "-01",
		strings.Repeat("a", 55), strings.Repeat("\x00", 100_000),
	} {
		x.do("FCALL", "timer_set", 1, k, "p", "PX", 60000, "TRACE", text)
		if got := x.record(k); got != ":p" {
			t.Errorf("%.60q: the record is %q, want %q", text, got, ":p")
		}
	}
	x.refuses("TRACE wants a traceparent", "FCALL", "timer_set", 1, k, "p", "PX", 60000, "TRACE")
	x.refuses("TRACE can be given once", "FCALL", "timer_set", 1, k, "p", "PX", 60000, "TRACE", trace, "TRACE", trace)
	x.refuses("unknown option", "FCALL", "timer_repeat", 1, k, "p", "EVERY", 60000, "TRACE", trace)
}

func TestRetryHasTheTrace(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	key, err := keys.Parse(k)
	if err != nil {
		t.Fatal(err)
	}
	const state = "a=b:c;d,x=\"~"
	for i, want := range [][2]string{{trace, state}, {trace, ""}, {"", ""}} {
		due := schedule.Millis(x.redisNow() + 60_000)
		r := schedule.Retry{EventID: fmt.Sprint(i), Key: key, Due: due, Attempt: 2, Payload: []byte("p"),
			TraceParent: want[0], TraceState: want[1]}
		if _, _, err := x.Retry(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if record := x.record(k); strings.Count(record, ":") != 1 {
			t.Errorf("the record %q has a colon among its options", record)
		}
		x.do("ZADD", keys.Single.Due(), x.redisNow(), k)
		x.do("DEL", k)
		f := x.claims(k + " deadline p")[0]
		if f.TraceParent != want[0] || f.TraceState != want[1] {
			t.Errorf("claimed %+v, want %q", f, want)
		}
	}
}
