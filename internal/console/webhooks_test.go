package console_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/streams"
)

// hostRows and letterRows are the most rows of hosts, and of namespaces with dead letters.
const hostRows, letterRows = 50, 20

// Of many hosts, and of many namespaces with dead letters, the pages show the worst, and how many they leave out.
func TestPagesSayWhatTheyLeaveOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := streams.EnsureDelivery(t.Context(), w.js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	e := w.fired("shop:order:callback:42", 1)
	for i := range hostRows + 3 {
		result := event.ResultDelivered
		if i == hostRows+2 {
			result = event.ResultRetry
		}
		w.deliver(e, result, func(d *event.Delivery) { d.Host, d.Duration = fmt.Sprintf("host%02d.example:443", i), 7 })
	}
	for i := range letterRows + 2 {
		w.letter(fmt.Sprintf("pay:order:kind%02d:1", i), "attempts used up")
	}
	w.letter("pay:order:kind21:2", "attempts used up")
	w.shows("/webhooks", ">host52.example", ">host48.example", "And 3 other hosts that fail less")
	w.shows("/api/v1/webhooks", `"hostsleftout": 3,`)
	w.shows("/consumers", "kind21", "kind18", "And 2 other namespaces with fewer letters")
	w.shows("/api/v1/consumers", `"lettersleftout": 2,`)
	for path, absent := range map[string]string{"/webhooks": ">host49.example", "/consumers": "kind19"} {
		text, _, _ := strings.Cut(w.page(path), "<h2>Deliveries")
		if strings.Contains(text, absent) {
			t.Errorf("%s has %s:\n%s", path, absent, text)
		}
	}
}

// The page of webhooks has the hosts with their calls and circuits, the deliveries, filtered, and each in full.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	has(t, w.page("/webhooks"), "No webhooks are used", "timerd deliver --config")
	if err := streams.EnsureDelivery(t.Context(), w.js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	e := w.fired("shop:order:callback:42", 1)
	call := func(host string, result event.Result, took int64, why string) {
		w.deliver(e, result, func(d *event.Delivery) { d.Host, d.Duration, d.Error = host, took, why })
	}
	for took := range int64(100) {
		call("good.example:443", event.ResultDelivered, took+1, "")
	}
	call("bad.example:443", event.ResultRetry, 7, "502 <b>Bad</b>")
	call("bad.example:443", event.ResultDelivered, 7, "")
	call("bad.example:443", event.ResultPostponed, 0, "the circuit of bad.example:443 is open")
	if _, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "TIMERS_STATE",
		Subjects: []string{"timers.state.>"}, MaxMsgsPerSubject: 1}); err != nil {
		t.Fatal(err)
	}
	since := time.Now().Add(-time.Minute)
	for _, process := range []string{"a", "b"} {
		if err := streams.StoreDeliverer(t.Context(), w.js, streams.Config{}, streams.Deliverer{Instance: process,
			Circuits: []streams.Circuit{{Host: "bad.example:443", Since: since, Next: time.Now().Add(time.Hour),
				Postponed: 2, Error: "502"}}}); err != nil {
			t.Fatal(err)
		}
	}
	text := w.fresh("/webhooks")
	inOrder(t, text, "bad.example:443", `data-is="failing">50 %`, "not called", "next probe in 59 min", "4 postponed",
		"502 &lt;b&gt;Bad&lt;/b&gt;", "good.example:443", `data-is="p50">50 ms`, `data-is="p99">99 ms`, "Next page")
	if strings.Contains(text, "<b>") {
		t.Errorf("markup of somebody else:\n%s", text)
	}
	has(t, w.get("/api/v1/webhooks").body, `"failed": 1,`, `"processes": 2,`, `"p99": 99,`, `"calls": 100,`)
	for _, filter := range []string{"failed=1", "text=502", "text=BAD&failed=1", "q=shop:order&failed=1"} {
		text := w.get("/api/v1/webhooks?" + filter).body
		if strings.Count(text, `"result"`) != 1 || !strings.Contains(text, `"result": "retry"`) {
			t.Errorf("%s: want the failed call alone:\n%s", filter, text)
		}
	}
	has(t, w.page("/webhooks?q=pay"), "No delivery matches")
	has(t, w.page("/webhooks/101"), "Delivery 101", "502 &lt;b&gt;Bad&lt;/b&gt;", "/timers/shop:order:callback:42",
		"bad.example:443", "7 ms")
	if a := w.get("/webhooks/999"); a.StatusCode != http.StatusNotFound {
		t.Errorf("%s for a delivery that is not there", a.Status)
	}
}
