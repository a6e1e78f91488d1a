package timerdtest_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/timerdtest"
)

// webhook is a call of an endpoint.
type webhook struct {
	at      time.Time // virtual
	event   client.Event
	headers http.Header
	body    []byte
}

// endpoint is an HTTP server that keeps its calls.
type endpoint struct {
	*httptest.Server

	mu    sync.Mutex
	srv   *timerdtest.Server
	made  int
	calls []webhook
}

// startEndpoint starts an endpoint. answer gets the number of the call, from 1 on.
func startEndpoint(t *testing.T, answer func(w http.ResponseWriter, n int)) *endpoint {
	t.Helper()
	e := &endpoint{}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("read a call: %v", err)
		}
		fired, err := event.ParseFired(body)
		if err != nil {
			t.Errorf("a call without an event: %v", err)
		}
		e.mu.Lock()
		e.calls = append(e.calls, webhook{e.srv.Now(), fired, r.Header.Clone(), body})
		e.made++
		n := e.made
		e.mu.Unlock()
		answer(w, n)
	}))
	t.Cleanup(e.Close)
	return e
}

// serve starts a timerd that calls the endpoint for the app pay. fields are further ones of the endpoint's.
func (e *endpoint) serve(t *testing.T, retry string, fields ...string) *timerdtest.Server {
	t.Helper()
	text := "endpoints:\n- match: pay\n  url: " + e.URL + "\n  allow_private: [127.0.0.0/8]\n"
	for _, field := range fields {
		text += "  " + field + "\n"
	}
	srv := timerdtest.Start(t, timerdtest.Options{Retry: retry, Deliver: text})
	e.mu.Lock()
	defer e.mu.Unlock()
	e.srv = srv
	return srv
}

// take returns the calls since it was called last.
func (e *endpoint) take() []webhook {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := e.calls
	e.calls = nil
	return all
}

// Six failures and a success, each at its virtual instant by the policy of WeChat Pay. The receiver checks signatures
// by its own clock, as it does in production.
func TestWebhookSucceedsAtTheSeventhAttempt(t *testing.T) {
	began := time.Now()
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	t.Setenv("TEST_WEBHOOK_SECRET", secret)
	e := startEndpoint(t, func(w http.ResponseWriter, n int) {
		if n < 7 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	srv := e.serve(t, "pay=wechatpay", "secrets: [env:TEST_WEBHOOK_SECRET]")
	set := srv.Now()
	_, err := srv.Timers().Set(t.Context(), "pay:callback:notify:1", []byte(`{"order":1}`), client.After(72*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if fired := srv.Advance(t, 100*time.Hour); len(fired) != 7 {
		t.Errorf("%d events have fired", len(fired))
	}
	receiver, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	calls := e.take()
	if len(calls) != 7 {
		t.Fatalf("%d calls, want 7", len(calls))
	}
	slack := time.Since(began) // the real time, by which virtual times may be longer
	due := calls[0].event.Due
	if late := due.Sub(set) - 72*time.Hour; late < -time.Millisecond || late > slack {
		t.Errorf("the first call is due %v off", late)
	}
	for i, delay := range []time.Duration{0, 15 * time.Second, 15 * time.Second, 30 * time.Second, 3 * time.Minute,
		10 * time.Minute, 20 * time.Minute} {
		c := calls[i]
		// a delay counts from the failure, which is a little after the due time
		if off := c.event.Due.Sub(due) - delay; c.event.Attempt != i+1 || off < 0 || off > slack {
			t.Errorf("attempt %d is due %v after the former one, want %v", c.event.Attempt, c.event.Due.Sub(due), delay)
		}
		if late := c.at.Sub(c.event.Due); late < 0 || late > slack {
			t.Errorf("attempt %d is called %v late", i+1, late)
		}
		if err := receiver.Verify(c.body, c.headers); err != nil {
			t.Errorf("attempt %d: %v", i+1, err)
		}
		due = c.event.Due
	}
}

// A host that is down opens its circuit after twenty calls. Its probes come in virtual time, and the circuit doubles.
func TestWebhookCircuitOpensAndCloses(t *testing.T) {
	began := time.Now()
	const failures, postponed = 20, 5
	e := startEndpoint(t, func(_ http.ResponseWriter, n int) {
		if n <= failures+1 { // the first probe too
			panic(http.ErrAbortHandler)
		}
	})
	srv := e.serve(t, "*=5h")
	first := srv.Now().Add(time.Hour)
	for i := range failures + postponed {
		at := client.At(first.Add(time.Duration(i) * time.Minute / failures))
		if _, err := srv.Timers().Set(t.Context(), fmt.Sprintf("pay:order:callback:%d", i), nil, at); err != nil {
			t.Fatal(err)
		}
	}
	srv.Advance(t, 3*time.Hour)
	calls := e.take()
	if want := failures + postponed + 1; len(calls) != want {
		t.Fatalf("%d calls, want %d", len(calls), want)
	}
	slack := time.Since(began)
	opened := calls[failures-1].at
	if after := opened.Sub(first); after < 57*time.Second-time.Millisecond || after > time.Minute+slack {
		t.Errorf("the circuit opened after %v", after)
	}
	// Deliveries wait for the circuit, and up to a fifth of its length for each other.
	probe, second := calls[failures].at.Sub(opened), calls[failures+1].at.Sub(calls[failures].at)
	if probe < 30*time.Second || probe > 36*time.Second+slack {
		t.Errorf("the first probe came after %v", probe)
	}
	if second < time.Minute || second > 72*time.Second+slack {
		t.Errorf("the second probe came after %v", second)
	}
	for _, c := range calls[failures:] {
		if c.event.Attempt != 1 {
			t.Errorf("%s has used up attempts: %d", c.event.Key, c.event.Attempt)
		}
	}
	srv.Advance(t, 4*time.Hour) // the retries of the first calls
	if n := len(e.take()); n != failures {
		t.Errorf("%d calls after 5 hours, want %d", n, failures)
	}
}

// A host may ask for a pause, and a delivery ends in virtual time too.
func TestWebhookWaitsAndExpires(t *testing.T) {
	began := time.Now()
	paused := startEndpoint(t, func(w http.ResponseWriter, n int) {
		if n == 1 {
			w.Header().Set("Retry-After", "7200")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	})
	srv := paused.serve(t, "*=1s")
	if err := srv.Redis().Set(t.Context(), "pay:order:paused:1", "", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	srv.Advance(t, 3*time.Hour)
	if calls := paused.take(); len(calls) != 2 {
		t.Errorf("%d calls, want 2", len(calls))
	} else if pause := calls[1].at.Sub(calls[0].at); pause < 2*time.Hour || pause > 2*time.Hour+time.Since(began) {
		t.Errorf("a pause of %v, want 2h", pause)
	}

	dead := startEndpoint(t, func(http.ResponseWriter, int) { panic(http.ErrAbortHandler) })
	srv = dead.serve(t, "*=5h", "expire: 2h")
	first := srv.Now().Add(time.Hour)
	for i := range 21 {
		at := client.At(first.Add(time.Duration(i) * time.Second))
		if _, err := srv.Timers().Set(t.Context(), fmt.Sprintf("pay:order:dead:%d", i), nil, at); err != nil {
			t.Fatal(err)
		}
	}
	srv.Advance(t, 4*time.Hour)
	stream, err := srv.JetStream().Stream(t.Context(), "TIMERS_DEAD")
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n != 1 {
		t.Errorf("%d dead letters, want 1", n)
	}
	letter, err := stream.GetLastMsgForSubject(t.Context(), "timers.dead.>")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(letter.Data), "postponed until 2h") {
		t.Errorf("the dead letter: %s", letter.Data)
	}
}

// A file with faults fails the test that has it, with all faults.
func TestWebhookFileWithFaults(t *testing.T) {
	failed := &failing{TB: t}
	func() {
		defer func() { _ = recover() }()
		timerdtest.Start(failed, timerdtest.Options{Deliver: "endpoints:\n- match: pay\n"})
	}()
	if !strings.Contains(failed.said, "url is missing") {
		t.Errorf("it says %q", failed.said)
	}
}
