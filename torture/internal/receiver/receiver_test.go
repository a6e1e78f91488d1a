package receiver

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/torture/internal/history"
)

// caller calls a receiver as timerd deliver does.
type caller struct {
	*Receiver
	t      *testing.T
	client http.Client
	log    string
}

func newCaller(t *testing.T) *caller {
	t.Helper()
	c := &caller{t: t, client: http.Client{CheckRedirect: func(*http.Request,
		[]*http.Request) error {
		return http.ErrUseLastResponse
	}}, log: filepath.Join(t.TempDir(), "history")}
	w, err := history.Create(c.log)
	if err != nil {
		t.Fatal(err)
	}
	if c.Receiver, err = New(w, 1, func(err error) { t.Error(err) }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.client.CloseIdleConnections)
	return c
}

// calls ends the receiver and returns its record.
func (c *caller) calls() []history.Call {
	c.t.Helper()
	c.client.CloseIdleConnections()
	c.history.Write(history.Record{End: &history.End{At: 1}})
	if err := c.Close(); err != nil {
		c.t.Error(err)
	}
	if err := c.history.Close(); err != nil {
		c.t.Error(err)
	}
	b, err := os.ReadFile(c.log)
	if err != nil {
		c.t.Fatal(err)
	}
	h, err := history.Read(bytes.NewReader(b))
	if err != nil {
		c.t.Fatal(err)
	}
	return h.Calls
}

// call calls a URL with a timer's event, signed with a secret, and returns the status, 0 if there is none.
func (c *caller) call(url, secret string) int {
	request, err := signed(c.t.Context(), url, secret)
	if err != nil {
		c.t.Error(err)
		return -1
	}
	response, err := c.client.Do(request)
	if err != nil {
		return 0
	}
	if err := response.Body.Close(); err != nil {
		c.t.Error(err)
	}
	return response.StatusCode
}

// signed returns the call of a URL with a timer's event.
func signed(ctx context.Context, url, secret string) (*http.Request, error) {
	key := keys.Key{App: history.HookApp, Module: "call", Type: "call", ID: "1"}
	now := time.Now().Truncate(time.Millisecond)
	e := event.Event{
		ID: keys.EventID(key.String(), now.UnixMilli(), 1), Type: event.TypeFired, Key: key, Time: now, Due: now,
		Attempt: 1, MaxAttempts: 5,
		Trigger: "deadline", Data: []byte("1"),
	}
	body := e.AppendJSON(nil)
	webhook, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		return nil, err
	}
	signature, err := webhook.Sign(event.WebhookID(e), now, body)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set(standardwebhooks.HeaderWebhookID, event.WebhookID(e))
	request.Header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	request.Header.Set(standardwebhooks.HeaderWebhookSignature, signature)
	request.Header.Set(deliverer, "1.3")
	return request, nil
}

// Each host's answer to a call, and its record.
func TestCalls(t *testing.T) {
	c := newCaller(t)
	url := func(role role, path string) string { return "http://" + c.hosts[role].proxy.Addr() + path }
	const other = "whsec_c29tZWJvZHkgZWxzZSBzaWduZWQgdGhpcyBvbmU="
	for _, call := range []struct {
		url, secret string
		status      int
	}{
		{url(steady, history.PathUsual), c.secret, http.StatusOK},
		{url(fixed, history.PathUsual), c.secret, http.StatusOK},
		{url(steady, history.PathGone), c.secret, http.StatusGone},
		{url(steady, history.PathUsual), other, http.StatusOK},
		{url(steady, "/elsewhere"), c.secret, http.StatusOK},
	} {
		if got := c.call(call.url, call.secret); got != call.status {
			t.Errorf("%s: %d, want %d", call.url, got, call.status)
		}
	}
	c.Frail().Cut()
	if got := c.call(url(frail, history.PathUsual), c.secret); got != 0 {
		t.Errorf("a host that is away answered %d", got)
	}
	c.Frail().Heal()
	if got := c.call(url(frail, history.PathUsual), c.secret); got != http.StatusOK {
		t.Errorf("a host that is back answered %d", got)
	}
	calls := c.calls()
	if len(calls) != 6 {
		t.Fatalf("%d calls: %+v", len(calls), calls)
	}
	for i, want := range []string{"", "", "", "no matching signature found",
		`no operation has requested a call of "/elsewhere"`, ""} {
		got := calls[i]
		if !strings.HasSuffix(got.Fault, want) || (got.Fault == "") != (want == "") ||
			got.WebhookID != strings.ReplaceAll(got.EventID, ".", "%2E") || got.Origin != got.EventID ||
			got.Key != "hook:call:call:1" || got.Attempt != 1 ||
			got.Payload != "1" || got.Deliverer != 1 || got.Start != 3 || got.At == 0 || got.Answered < got.At ||
			got.Status == 0 {
			t.Errorf("call %d: %+v, want the fault %q", i, got, want)
		}
	}
}

// A flaky host fails in each way, and no more after Recover.
func TestFlaky(t *testing.T) {
	c := newCaller(t)
	url := "http://" + c.hosts[flaky].proxy.Addr() + history.PathUsual
	c.client.Timeout = time.Second // shorter than it hangs
	const all = 60
	answers := make(chan int, all)
	for range all {
		go func() { answers <- c.call(url, c.secret) }()
	}
	seen := map[int]int{}
	for range all {
		seen[<-answers]++
	}
	for _, status := range []int{0, 200, 302, 404, 429, 500, 503} {
		if seen[status] == 0 {
			t.Errorf("no call came to %d: %v", status, seen)
		}
	}
	c.Recover()
	c.client.Timeout = 0
	for range 5 {
		if got := c.call(url, c.secret); got != http.StatusOK {
			t.Errorf("a host that has recovered answered %d", got)
		}
	}
	unanswered := 0
	for _, call := range c.calls() {
		if call.Fault != "" {
			t.Errorf("%+v", call)
		}
		if call.Status == 0 {
			unanswered++
		}
	}
	if unanswered == 0 || unanswered > seen[0] {
		t.Errorf("%d calls without an answer, the caller had %d", unanswered, seen[0])
	}
}
