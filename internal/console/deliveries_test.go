package console_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// trace is one that a timer was set in.
const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// fired publishes a firing of a key as timerd does, with changes, and returns it.
func (w *world) fired(key string, attempt int, change ...func(*event.Event)) event.Event {
	w.t.Helper()
	k, err := keys.Parse(key)
	if err != nil {
		w.t.Fatal(err)
	}
	due := time.Now().Truncate(time.Millisecond)
	e := event.Event{
		ID: keys.EventID(key, due.UnixMilli(), attempt), Type: event.TypeFired, Key: k, Time: due, Due: due,
		Attempt: attempt, MaxAttempts: 4,
		Trigger: "deadline", Data: []byte(`{"order":42}`), TraceParent: trace,
	}
	for _, f := range change {
		f(&e)
	}
	w.publish(keys.Fired, e)
	return e
}

// deliver publishes a record of an event to the log, like timerd deliver, with changes.
func (w *world) deliver(e event.Event, result event.Result, change ...func(*event.Delivery)) {
	w.t.Helper()
	d := event.Delivery{
		ID: e.ID, Origin: e.FirstID(), Subject: keys.EncodeText(e.Key.String()), Attempt: e.Attempt,
		Host: "merchant.example:443", Result: result,
		Time: time.Now().UTC().Truncate(time.Millisecond),
	}
	for _, f := range change {
		f(&d)
	}
	data, err := json.Marshal(d)
	if err != nil {
		w.t.Fatal(err)
	}
	w.record(e.Key.Subject(keys.DefaultPrefix, keys.Delivery), data)
}

// record publishes a message to the log.
func (w *world) record(subject string, data []byte) {
	w.t.Helper()
	if err := streams.EnsureDelivery(w.t.Context(), w.js, streams.Config{}); err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.js.PublishMsg(w.t.Context(), &nats.Msg{Subject: subject, Data: data}); err != nil {
		w.t.Fatal(err)
	}
}

// inOrder fails unless a text has all of the others, in this order.
func inOrder(t testing.TB, text string, wants ...string) {
	t.Helper()
	rest := text
	for _, want := range wants {
		_, after, ok := strings.Cut(rest, want)
		if !ok {
			t.Fatalf("no %q, or not after those before it, in:\n%s", want, text)
		}
		rest = after
	}
}

func TestDeliveriesOfATimer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const key = "pay:order:callback:42"
	first := w.fired(key, 1)
	text := w.page("/timers/" + key)
	has(t, text, first.ID, trace)
	if strings.Contains(text, "eliver") || strings.Contains(w.get("/api/v1/timers/"+key).body, "DELIVERY") {
		t.Errorf("there are no webhooks, but a word of them:\n%s", text)
	}
	w.deliver(first, event.ResultRetry, func(d *event.Delivery) {
		d.Status, d.Duration, d.Error = 502, 1041,
			"502 Bad Gateway"
	})
	second := w.fired(key, 2, func(e *event.Event) { e.SetOrigin(first.Due, 1) })
	for range 3 {
		w.deliver(second, event.ResultPostponed, func(d *event.Delivery) { d.Error = "its circuit is open" })
	}
	w.deliver(second, event.ResultDelivered, func(d *event.Delivery) { d.Status, d.Duration = 200, 12 })
	gone := second
	gone.ID = "gone@1.1"
	w.deliver(gone, event.ResultDead, func(d *event.Delivery) { d.Host, d.Error = "", "the payload has no notify_url" })
	text = w.page("/timers/" + key)
	_, deliveries, _ := strings.Cut(text, "<h2>Deliveries</h2>")
	inOrder(t, deliveries, `chip dead"`, "not called", "the payload has no notify_url", "its event has gone",
		`chip good"`, "delivered", "merchant.example:443", "200", "12 ms", `name="seq" value="2"`,
		`chip held"`, "postponed", "3 times", "not called", "its circuit is open", `name="seq" value="2"`,
		`chip owed"`, "retry", "502", "1,041 ms", "502 Bad Gateway", `name="seq" value="1"`)
	has(t, text, "<dt>origin</dt>", "<dt>trace</dt>", "<dt>event id</dt>", first.ID, second.ID)
	has(t, w.page("/search?q=42"), "<h2>Deliveries</h2>", "502 Bad Gateway", "/timers/"+key)
	has(t, w.get("/api/v1/timers/"+key).body, `"result": "delivered"`, `"duration": 1041`, `"origin": "`+first.ID+`"`,
		`"traceparent": "`+trace+`"`)
	if n := strings.Count(w.get("/api/v1/timers/"+key).body, `"result": "postponed"`); n != 3 {
		t.Errorf("%d were postponed for programs, want all 3", n)
	}
}

// owed waits until a timer of a key is due.
func (w *world) owed(key string) {
	w.t.Helper()
	testenv.Eventually(w.t, time.Minute, func() bool {
		return strings.Contains(w.get("/api/v1/timers/"+key).body, `"state": "owed"`)
	}, "the event sent again to be due")
}

// The coming attempts have an origin and a trace too.
func TestOriginOfComingAttempts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.fired("pay:order:callback:7", 1)
	has(t, w.act(url.Values{"do": {"resend"}, "seq": {"1"}}, nil, "1 event"), "1 sent again")
	w.owed("pay:order:callback:7")
	has(t, w.get("/api/v1/timers/pay:order:callback:7").body, `"origin": "`+first.ID+`"`, `"traceparent": "`+trace+`"`)
	inOrder(t, w.page("/timers/pay:order:callback:7"), "<h2>Facts</h2>", "<dt>origin</dt>", first.ID, "<dt>trace</dt>",
		trace)
}

// An id is shown as the event has it, by all views: of a key with a space it is percent-encoded already.
func TestIDsOfAKeyWithASpace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.fired("pay:order:callback:order 42", 1)
	second := w.fired("pay:order:callback:order 42", 2, func(e *event.Event) { e.SetOrigin(first.Due, 1) })
	w.deliver(second, event.ResultRetry)
	body := w.get("/api/v1/timers/pay:order:callback:order%2042").body
	if strings.Count(body, `"id": "`+second.ID+`"`) != 2 || strings.Count(body, `"origin": "`+first.ID+`"`) != 2 ||
		!strings.Contains(body, `"event": 2`) {
		t.Errorf("want id %s and origin %s of an event and its delivery:\n%s", second.ID, first.ID, body)
	}
	inOrder(t, w.page("/timers/pay:order:callback:order%2042"), "<h2>Facts</h2>", "<dt>origin</dt>", first.ID)
}

// Many deliveries are shown page by page, and each is shown once.
func TestDeliveriesPageByPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const key, n = "pay:order:callback:9", 100
	e := w.fired(key, 1)
	for i := range n {
		w.deliver(e, event.ResultRetry, func(d *event.Delivery) { d.Error = fmt.Sprintf("failure %03d.", i) })
	}
	seen, at := map[string]int{}, "/timers/"+key
	for range 10 {
		text := w.page(at)
		for i := range n {
			what := fmt.Sprintf("failure %03d.", i)
			seen[what] += strings.Count(text, what)
		}
		_, rest, more := strings.Cut(text, `href="/timers/`+key+`?from=`)
		if !more {
			has(t, text, `name="seq" value="1"`)
			break
		}
		has(t, text, "its event is further back")
		place, _, _ := strings.Cut(rest, `"`)
		at = "/timers/" + key + "?from=" + place
	}
	for i := range n {
		if what := fmt.Sprintf("failure %03d.", i); seen[what] != 1 {
			t.Errorf("%s was shown %d times", what, seen[what])
		}
	}
}

// Sent again, a timer fires once more now, with its payload and the origin that it had, beside a newer timer of its
// key.
func TestSendAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const key = "pay:order:callback:42"
	first := w.fired(key, 1)
	second := w.fired(key, 2, func(e *event.Event) { e.SetOrigin(first.Due, 1) })
	w.fired(key, 3, func(e *event.Event) { e.Data, e.Status = nil, event.StatusTooLarge })
	w.fired("pay:order:callback:other", 1)
	w.record("timers.fired.pay.order.callback", []byte("no event of pay:order:callback:42"))
	w.set(key, "newer")

	form := url.Values{"do": {"resend"}, "key": {key}, "seq": {"2"}}
	has(t, w.act(form, nil, "Send again: event 2 of "+key, "1 event",
		"All consumers of the subject get it, not only the webhook", "A newer timer of its key stays, and both fire",
		"the webhook-id"), "1 sent again")
	if timer, found, err := w.timers.Get(t.Context(), key); err != nil || !found || string(timer.Payload) != "newer" ||
		timer.State != client.Pending {
		t.Errorf("the newer timer: %+v, %v, %v", timer, found, err)
	}
	w.owed(key)
	has(t, w.get("/api/v1/timers/"+key).body, `"origin": "`+first.ID+`"`, `\"order\":42`)
	has(t, w.page("/timers/"+key), "Attempt 1 of 4 is owed")
	has(t, w.log.String(), `msg="console: action"`, "do=resend", `what="Send again: event 2 of pay:order:callback:42"`,
		"who=anybody@127.0.0.1", "touches=1", "sent again\"=1")
	has(t, w.act(form, nil, "1 event"), "0 sent again", "1 sent again before: send the newer event")
	// Replaying its dead letter would be the same once more.
	second.Type, second.DeadReason = event.TypeDead, "attempts used up"
	w.publish(keys.Dead, second)
	has(t, w.act(url.Values{"do": {"replay"}, "seq": {"1"}}, nil), "0 replayed", "1 replayed or sent again before")

	has(t, w.act(url.Values{"do": {"resend"}, "key": {key}, "seq": {"1", "3", "4", "5", "99"}}, nil, "1 event",
		"Event 3 cannot be sent again: its payload was left out",
		"Event 4 cannot be sent again: it belongs to another timer",
		"Event 5 cannot be sent again: it is not an event",
		"Event 99 cannot be sent again: it is no longer in its stream"), "1 sent again")
	has(t, w.page("/timers/"+key), "not possible: <bdi>its payload was left out")
	if text := w.page("/timers/" + key); strings.Contains(text, `value="3"`) || strings.Contains(text, `value="5"`) {
		t.Errorf("what cannot be sent has a button:\n%s", text)
	}
}

// A payload that the limit leaves out now, as it was larger before, is not sent without it.
func TestSendAgainAnEventThatIsTooLargeNow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, size := range []int{schedule.DefaultMaxPayload + 1, schedule.DefaultMaxPayload} {
		w.fired("pay:order:callback:42", 1, func(e *event.Event) {
			e.Data = []byte(`"` + strings.Repeat("x", size-2) + `"`)
		})
	}
	has(t, w.act(url.Values{"do": {"resend"}, "seq": {"1", "2"}}, nil, "1 event", "Under a hold it waits",
		"Within a day an event is sent again once",
		"Event 1 cannot be sent again: its payload has 262,145 bytes, and TIMERD_MAX_PAYLOAD is 262,144 now"),
		"1 sent again")
}

// An event that goes while somebody thinks about it is not sent.
func TestSendAgainAVanishedEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fired("pay:order:callback:42", 1)
	at := w.post("/actions", url.Values{"do": {"resend"}, "seq": {"1"}}).Header.Get("Location")
	testenv.Eventually(t, time.Minute, func() bool { return strings.Contains(w.page(at), "1 event") }, "the question")
	stream, err := w.js.Stream(t.Context(), keys.DefaultStream)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.post(at, url.Values{"confirm": {"yes"}})
	testenv.Eventually(t, time.Minute, func() bool { return strings.Contains(w.page(at), "1 gone meanwhile") },
		"the end")
}

// A console that only looks shows deliveries, and has no way to send anything.
func TestDeliveriesWithoutActions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.settings.Actions = false })
	w.deliver(w.fired("pay:order:callback:42", 1), event.ResultRetry)
	text := w.page("/timers/pay:order:callback:42")
	has(t, text, "<h2>Deliveries</h2>", "<dt>event id</dt>")
	if strings.Contains(text, "resend") {
		t.Errorf("there is a button:\n%s", text)
	}
	if a := w.post("/actions", url.Values{"do": {"resend"}, "seq": {"1"}}); a.StatusCode/100 != 4 {
		t.Errorf("%s", a.Status)
	}
}

// Hosts and errors are strangers' texts: they do not become markup, reverse the text around them, or fill the page.
func TestHostileDeliveries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const key = "pay:order:callback:42"
	e := w.fired(key, 1, func(e *event.Event) { e.TraceParent = "" })
	const evil = "\"><script>alert(1)</script>\u202egnp.\xff\x00"
	w.deliver(e, evil, func(d *event.Delivery) {
		d.Host, d.Error, d.Origin, d.Attempt, d.Status = evil, evil, evil, -7,
			-502
	})
	w.deliver(e, event.ResultDead, func(d *event.Delivery) {
		d.Host, d.Error = strings.Repeat("h", 10_000),
			strings.Repeat("e", 10_000)
	})
	w.deliver(e, event.ResultRetry, func(d *event.Delivery) { d.Duration = 1<<63 - 1 })
	w.record(e.Key.Subject(keys.DefaultPrefix, keys.Delivery), []byte("pay:order:callback:42 \xff<script>"))
	far := strings.Replace(string(e.AppendJSON(nil)), `"time":"`+e.Time.UTC().Format("2006-01-02T15:04:05.000Z")+`"`,
		`"time":"9999-12-31T23:59:59-23:59"`, 1)
	w.record(e.Key.Subject(keys.DefaultPrefix, keys.Fired), []byte(far))
	for _, path := range []string{"/timers/" + key, "/search?q=42"} {
		var text string
		testenv.Eventually(t, time.Minute, func() bool { // a busy machine may not read all of the log in time
			text = w.page(path)
			return strings.Contains(text, "not a delivery") && strings.Contains(text, "alert(1)")
		}, "the deliveries")
		has(t, text, "&lt;script&gt;alert(1)", "U&#43;202E", "not a delivery", "9,223,372,036,854,775,807 ms",
			strings.Repeat("e", 1000))
		if strings.Contains(text, "<script>alert") || strings.Contains(text, "\u202e") ||
			strings.Contains(text, strings.Repeat("e", 2000)) || strings.Contains(text, strings.Repeat("h", 1000)) {
			t.Errorf("%s shows too much:\n%s", path, text)
		}
		if body := w.get("/api/v1" + path).body; !json.Valid([]byte(body)) {
			t.Errorf("%s is no JSON:\n%s", path, body)
		}
	}
	has(t, w.page("/timers/"+key), "want a time as in RFC 3339")
}
