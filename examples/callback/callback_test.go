package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/timerd-io/timerd/client"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	for header, want := range map[string]time.Duration{
		"0":                             0,
		"120":                           2 * time.Minute,
		"99999999":                      maxRetryAfter,
		"18446744073709551615":          maxRetryAfter,
		"Fri, 20 Nov 2026 09:00:30 GMT": 30 * time.Second,
		"Fri, 20 Nov 2026 08:00:00 GMT": 0,
		"Sun, 20 Nov 2033 09:00:00 GMT": maxRetryAfter,
	} {
		if got, ok := retryAfter(header, now); !ok || got != want {
			t.Errorf("%q: %v, %t, want %v", header, got, ok, want)
		}
	}
	for _, header := range []string{"", "-1", "1.5", "soon", "20 Nov"} {
		if got, ok := retryAfter(header, now); ok {
			t.Errorf("%q: %v, want none", header, got)
		}
	}
}

func eventOf(t *testing.T, p any) client.Event {
	t.Helper()
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return client.Event{Data: data}
}

func TestAnswers(t *testing.T) {
	webhook, err := standardwebhooks.NewWebhook(merchantSecret)
	if err != nil {
		t.Fatal(err)
	}
	var status int
	var after string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if after != "" {
			w.Header().Set("Retry-After", after)
		}
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
	}))
	defer server.Close()
	send := newSender(map[string]endpoint{"shop": {server.URL, webhook}, "away": {"http://127.0.0.1:1", webhook}, "bad": {":", webhook}}, time.Minute)
	defer send.http.CloseIdleConnections()

	for _, test := range []struct {
		status int
		after  string
		want   answer
	}{
		{200, "", answer{delivered, 0, "200 OK"}},
		{204, "5", answer{delivered, 0, "204 No Content"}},
		{302, "", answer{failed, 0, "302 Found"}},
		{404, "5", answer{failed, 0, "404 Not Found"}},
		{410, "5", answer{hopeless, 0, "410 Gone"}},
		{429, "5", answer{postponed, 5 * time.Second, "429 Too Many Requests"}},
		{429, "", answer{failed, 0, "429 Too Many Requests"}},
		{500, "5", answer{failed, 0, "500 Internal Server Error"}},
		{503, "7", answer{postponed, 7 * time.Second, "503 Service Unavailable"}},
		{503, "soon", answer{failed, 0, "503 Service Unavailable"}},
	} {
		status, after = test.status, test.after
		if got := send.call(t.Context(), eventOf(t, payment{Order: "1", Merchant: "shop"})); got != test.want {
			t.Errorf("%d with Retry-After %q: %+v, want %+v", test.status, test.after, got, test.want)
		}
	}
	for _, test := range []struct {
		payload any
		verdict verdict
		text    string
	}{
		{payment{Merchant: "away"}, failed, "connection refused"},
		{payment{Merchant: "none"}, hopeless, `no merchant "none"`},
		{payment{Merchant: "bad"}, hopeless, "missing protocol scheme"},
		{"text", hopeless, "the payload is no payment"},
	} {
		if got := send.call(t.Context(), eventOf(t, test.payload)); got.verdict != test.verdict || !strings.Contains(got.text, test.text) {
			t.Errorf("%v: %+v, want %q", test.payload, got, test.text)
		}
	}
	if got := send.call(t.Context(), client.Event{Status: "missing"}); got.verdict != hopeless {
		t.Errorf("without a payload: %+v", got)
	}
}

// A merchant that knows the secret can verify each attempt, and tell that they are
// about the same payment.
func TestSignature(t *testing.T) {
	webhook, err := standardwebhooks.NewWebhook(merchantSecret)
	if err != nil {
		t.Fatal(err)
	}
	ids := make(map[string]bool)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		ids[r.Header.Get(standardwebhooks.HeaderWebhookID)] = true
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if err := webhook.Verify(body, r.Header); err != nil {
			t.Error(err)
		}
		var n notification
		if err := json.Unmarshal(body, &n); err != nil || n.Type != "payment.succeeded" || n.Data.Order != "4711" || n.Timestamp.IsZero() {
			t.Errorf("%s: %+v, %v", body, n, err)
		}
	}))
	defer server.Close()
	send := newSender(map[string]endpoint{"shop": {server.URL, webhook}}, time.Minute)
	defer send.http.CloseIdleConnections()
	for range 2 {
		e := eventOf(t, payment{Order: "4711", Merchant: "shop", Amount: 1999, Currency: "EUR", PaidAt: time.Now()})
		if got := send.call(t.Context(), e); got.verdict != delivered {
			t.Errorf("%+v", got)
		}
	}
	if len(ids) != 1 {
		t.Errorf("ids %v, want one", ids)
	}
}
