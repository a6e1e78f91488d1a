package deliver_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// What a receiver answers decides: each row of docs/webhooks.md.
func TestAnswersDecide(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	long := strings.Repeat("x", 5000)
	v := receive(t, func(w http.ResponseWriter, q *http.Request) {
		var status int
		if _, err := fmt.Sscanf(q.URL.Path, "/%d", &status); err != nil {
			panic(http.ErrAbortHandler)
		}
		for name, header := range map[string]string{"after": "Retry-After", "date": "Date"} {
			if value := q.URL.Query().Get(name); value != "" {
				w.Header().Set(header, value)
			}
		}
		w.Header().Set("Location", "/200")
		w.WriteHeader(status)
		fmt.Fprint(w, "because "+long)
	})
	silent := receive(t, func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() })
	r.deliver(parse(t, to("{data.url}", "timeout: 1s")))
	tests := []struct {
		url     string
		attempt int
		result  event.Result
		status  int
		delay   string // Timer-Delay-Least; "" for none
		text    string // how the error begins
	}{
		{"/200", 1, "delivered", 200, "", ""},
		{"/204", 3, "delivered", 204, "", ""},
		{"/299?after=5", 1, "delivered", 299, "", ""},
		{"/301", 1, "retry", 301, "", "301 Moved Permanently: because xxx"},
		{"/307", 1, "retry", 307, "", "307 Temporary Redirect: because"},
		{"/400", 1, "retry", 400, "", "400 Bad Request: because"},
		{"/404?after=5", 2, "retry", 404, "", "404 Not Found: because"},
		{"/404", 3, "dead", 404, "", "404 Not Found: because"},
		{"/410?after=5", 1, "dead", 410, "", "410 Gone: because"},
		{"/429", 1, "retry", 429, "", "429 Too Many Requests: because"},
		{"/429?after=7", 1, "retry", 429, "7s", "429 Too Many Requests: because"},
		{"/429?after=soon", 1, "retry", 429, "", "429"},
		{"/429?after=7", 3, "dead", 429, "", "429"},
		{"/500?after=7", 1, "retry", 500, "", "500 Internal Server Error: because"},
		{"/429?after=299.997", 1, "retry", 429, "5m0s", "429"},
		{"/429?after=300,%20300", 1, "retry", 429, "5m0s", "429"},
		{"/503?after=Fri,%2020%20Nov%202015%2008:01:30%20%2B0000&date=Fri,%2020%20Nov%202015%2008:00:00%20GMT", 1,
			"retry", 503, "1m30s", "503"},
		{" /200?message=order 42 paid HTTP/1.0&name=张三 ", 1, "delivered", 200, "", ""},
		{"/503?after=0", 1, "retry", 503, "", "503"},
		{"/503?after=99999999999999999999", 1, "retry", 503, "24h0m0s", "503"},
		{"/503?after=Fri,%2020%20Nov%202015%2008:00:00%20GMT", 1, "retry", 503, "", "503"},
		// by a clock that is behind
		{"/429?after=Fri,%2020%20Nov%202015%2008:01:30%20GMT&date=Fri,%2020%20Nov%202015%2008:00:00%20GMT", 1, "retry",
			429, "1m30s", "429"},
		// by one that is ahead
		{"/429?after=Fri,%2020%20Nov%202065%2008:00:00%20GMT&date=Fri,%2020%20Nov%202065%2008:00:07%20GMT", 1, "retry",
			429, "", "429"},
		{"/599", 1, "retry", 599, "", "599: because"},
		{"/abort", 1, "retry", 0, "", "connection closed without an answer"},
		{"silent", 1, "retry", 0, "", "no answer within 1s"},
		{"http://127.0.0.1:1/", 1, "retry", 0, "", "dial tcp 127.0.0.1:1: connect: connection refused"},
		{"http://no.such.host.invalid/", 1, "retry", 0, "", ""},
	}
	for i, test := range tests {
		url := test.url
		if path := strings.TrimLeft(url, " "); strings.HasPrefix(path, "/") {
			url = v.URL + path
		} else if url == "silent" {
			url = silent.URL
		}
		r.publish(attempt(fired(fmt.Sprintf("pay:order:callback:%d", i), []byte(`{"url":"`+url+`"}`)), test.attempt))
	}
	records := r.records(len(tests))
	r.settled("timerd-deliver")
	delays, letters := map[string]string{}, map[string]event.Event{}
	retries, dead := 0, 0
	for _, test := range tests {
		switch {
		// the last attempt: timerd makes the letter
		case test.result == "retry" || test.result == "dead" && test.attempt == 3:
			retries++
		case test.result == "dead":
			dead++
		}
	}
	for _, m := range r.retry.Wait(retries, patience) {
		e, err := event.Parse(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		delays[e.Key.ID] = "policy"
		if m.Header.Get(event.DelayHeader) != "" {
			t.Errorf("%s overrides the policy: %v", e.Key, m.Header)
		}
		if delay := m.Header.Get(event.LeastDelayHeader); delay != "" {
			delays[e.Key.ID] = delay
		}
	}
	for _, m := range r.dead.Wait(dead, patience) {
		e, err := event.Parse(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		letters[e.Key.ID] = e
	}
	for i, test := range tests {
		id := fmt.Sprint(i)
		got := records[id][0]
		if len(records[id]) != 1 || got.Result != test.result || got.Status != test.status ||
			got.Attempt != test.attempt || !strings.HasPrefix(got.Error, test.text) {
			t.Errorf("%s: log %+v, want %s %d %q", test.url, records[id], test.result, test.status, test.text)
		}
		if age := time.Since(got.Time); age < 0 || age > patience || got.ID == "" || got.Host == "" ||
			got.Duration == 0 || got.Duration > 10_000 {
			t.Errorf("%s: record %+v", test.url, got)
		}
		// the last attempt: timerd makes the letter
		asked := test.result == "retry" || test.result == "dead" && test.attempt == 3
		want := test.delay
		if want == "" && asked {
			want = "policy"
		}
		if delays[id] != want {
			t.Errorf("%s: retry after %q, want %q", test.url, delays[id], want)
		}
		if test.status == 410 && letters[id].LastError != "410 Gone: because "+strings.Repeat("x",
			1024-len("because ")) {
			t.Errorf("%s: dead letter with %q, want the first 1 KiB of the answer", test.url, letters[id].LastError)
		}
		if letter, ok := letters[id]; ok != (test.result == "dead" && !asked) || ok &&
			!strings.HasPrefix(letter.LastError, test.text) {
			t.Errorf("%s: dead letter %v %q", test.url, ok, letter.LastError)
		}
	}
	// The call whose connection is closed may be repeated, once.
	if n := len(v.requests()); n != len(tests)-3 && n != len(tests)-2 {
		t.Errorf("%d requests: redirects were followed, or calls repeated", n)
	}
}

// A receiver verifies its calls with the library of Standard Webhooks, with the old secret and with the new one; the
// body is the event or the payload, byte for byte.
func TestSigned(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	v := receive(t, nil)
	text := strings.NewReplacer("URL", v.URL, "LOCAL", local).Replace(`
endpoints:
- {match: 'a:event', url: 'URL/event', secrets: ['env:A', 'env:B'], LOCAL, headers: {X-Shop: one, User-Agent: shop/1}}
- {match: 'a:data', url: 'URL/data?x=1', secrets: ['env:B'], body: data, LOCAL}
- {match: 'a:plain', url: 'URL/plain', body: data, LOCAL}
`)
	r.deliver(parse(t, text))
	for i, payload := range [][]byte{[]byte(` {"order": 42.0} `), []byte("text\n"), {0xff, 0}, {}} {
		for _, module := range []string{"event", "data", "plain"} {
			e := fired(fmt.Sprintf("a:%s:b:%d", module, i), payload)
			before := len(v.requests())
			r.publish(e)
			got := v.wait(t, before+1)
			check(t, e, got[len(got)-1])
		}
	}
	r.publish(fired("a:event:b:missing", nil), fired("a:data:b:missing", nil))
	records := r.records(3*4 + 2)["missing"]
	if len(records) != 2 || records[0].Result == records[1].Result {
		t.Fatalf("records of events without a payload: %+v", records)
	}
	for _, record := range records {
		if strings.HasPrefix(record.ID, "a:event") != (record.Result == "delivered") || record.Result == "dead" &&
			record.Error != "nothing to deliver: the payload is missing" {
			t.Errorf("without a payload: %+v", record)
		}
	}
}

// check checks the calls of a receiver of TestSigned.
func check(t *testing.T, e event.Event, got request) {
	t.Helper()
	module := e.Key.Module
	secrets := map[string][]string{"event": {secretA, secretB}, "data": {secretB}}[module]
	wantPath := map[string]string{"event": "/event", "data": "/data?x=1", "plain": "/plain"}[module]
	wantBody, wantType := e.Data, event.DataContentType(e.Data)
	if module == "event" {
		wantBody, wantType = e.AppendJSON(nil), "application/cloudevents+json"
	}
	h := got.header
	if got.path != wantPath || !bytes.Equal(got.body, wantBody) || h.Get("Content-Type") != wantType ||
		h.Get("Webhook-Id") != strings.ReplaceAll(e.ID, ".", "%2E") {
		t.Errorf("%s: %s got %q with %v", e.Key, got.path, got.body, h)
	}
	if n := len(strings.Fields(h.Get("Webhook-Signature"))); n != len(secrets) {
		t.Errorf("%s: %d signatures, want %d", e.Key, n, len(secrets))
	}
	for _, secret := range secrets {
		w, err := standardwebhooks.NewWebhook(secret)
		if err == nil {
			err = w.Verify(got.body, h)
		}
		if err != nil {
			t.Errorf("%s: %v", e.Key, err)
		}
	}
	if module == "event" && (h.Get("X-Shop") != "one" || h.Get("User-Agent") != "shop/1") ||
		h.Values("Idempotency-Key") != nil || h.Get("Accept-Encoding") != "" {
		t.Errorf("%s: headers %v", e.Key, h)
	}
}

// URLs out of payloads that cannot be used make dead letters, and nothing else is held up.
func TestHostileURLs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	v := receive(t, nil)
	r.deliver(parse(t, "endpoints:\n- {match: pay, url: '{data.notify.url}', hosts: ['*.example.com', 127.0.0.1, "+
		"localhost, '::1'], "+local+"}"))
	good := fired("pay:order:callback:good", []byte(`{"notify":{"url":"`+v.URL+`/ok"}}`))
	bad := []string{
		`{}`, `[]`, `"text"`, `{"notify":"http://x"}`, `{"notify":{"url":1}}`, `{"notify":{"url":null}}`,
		`{"notify":{"url":["http://x"]}}`, `{"notify":{"URL":"` + v.URL + `"}}`,
		`not json`, `{"notify":{"url":"` + v.URL + `"}`, // cut short
	}
	for _, url := range []string{
		"", "/path", "//127.0.0.1/", "http:", "http://", "http:///", "http:127.0.0.1", "ftp://127.0.0.1/",
		"file:///etc/passwd", "gopher://127.0.0.1/", "javascript:alert(1)",
		"http://user:pw@127.0.0.1/", "http://127.0.0.1:0/", "http://127.0.0.1:65536/", "http://127.0.0.1:x/",
		"http://[::1%25lo]/", "http://a b/", "http://\\u0000/", "http://%zz/",
		"http://127.0.0.1%2f@evil.com/", "http://evil.com#.example.com/", "http://evil.com/.example.com",
		"http://example.com.evil.com/", "http://notexample.com/", "http://example.com/",
		"http://" + strings.Repeat("a.", 200) + "example.com/", "http://127.0.0.1/" + strings.Repeat("a", 9000),
		"http://bücher.example.com/", "http://..example.com/", "http://*.example.com/",
		"http://127.1/", "http://2130706433/", "http://0x7f000001./", "http://0x/", "http://10.example.com.1/",
	} {
		bad = append(bad, `{"notify":{"url":"`+url+`"}}`)
	}
	for i, payload := range bad {
		r.publish(fired(fmt.Sprintf("pay:order:callback:%d", i), []byte(payload)))
	}
	r.publish(fired("pay:order:callback:none", nil), good)
	records := r.records(len(bad) + 2)
	for i, payload := range bad {
		got := records[fmt.Sprint(i)]
		if len(got) != 1 || got[0].Result != "dead" || got[0].Status != 0 || got[0].Host != "" ||
			!strings.Contains(got[0].Error, "URL") {
			t.Errorf("%.100s: %+v", payload, got)
		}
	}
	if got := records["none"]; got[0].Result != "dead" || got[0].Error != "no URL: the payload is missing" {
		t.Errorf("without payload: %+v", got)
	}
	if got := records["good"]; got[0].Result != "delivered" {
		t.Errorf("good one: %+v", got)
	}
	r.dead.Wait(len(bad)+1, patience)
	if len(v.requests()) != 1 {
		t.Errorf("%d requests", len(v.requests()))
	}
}
