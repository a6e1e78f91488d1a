package apitest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/console"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// world is a console with a checker of its answers.
type world struct {
	t      *testing.T
	server *httptest.Server
	check  validator.Validator
	timers *client.Timers
	holds  *admin.Holds
}

func newWorld(t *testing.T) *world {
	t.Helper()
	rdb, js := testenv.Redis(t).Client(), testenv.NATS(t).JetStream()
	sched, timers := schedule.New(rdb, schedule.DefaultMaxPayload), client.New(rdb)
	if _, err := sched.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	nodes, err := sched.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nodes[0].KeepAccount(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := streams.Ensure(t.Context(), js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	policies, err := policy.ParseRetries("*=10s,30s")
	if err != nil {
		t.Fatal(err)
	}
	key := keys.Key{App: "shop", Module: "order", Type: "timeout", ID: "42"}
	due := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
	for i, e := range []event.Event{{Type: event.TypeFired, Trigger: "deadline"},
		{Type: event.TypeDead, DeadReason: "used up", LastError: "502"}} {
		e.ID, e.Key, e.Due, e.Time, e.Attempt, e.MaxAttempts, e.Data = keys.EventID(key.String(), due.UnixMilli(), i+1),
			key, due, due, i+1, 3, []byte(`{"a":1}`)
		if _, err := js.Publish(t.Context(), key.Subject(keys.DefaultPrefix, []string{keys.Fired, keys.Dead}[i]),
			e.AppendJSON(nil)); err != nil {
			t.Fatal(err)
		}
	}
	if err := streams.EnsureDelivery(t.Context(), js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "TIMERS_STATE",
		Subjects: []string{"timers.state.>"}}); err != nil {
		t.Fatal(err)
	}
	for subject, data := range map[string]string{
		"timers.state.account": `{"last":{"since":"2026-11-27T09:00:00Z","stored":3,"fired":2,"least":-1,"most":1,
			"at":"2026-11-27T10:00:00Z","unexplained_since":"2026-11-27T09:59:00Z"}}`,
		"timers.dead.a.b.c":     "\xffno event",
		"timers.delivery.a.b.c": "\xffno delivery of 42",
		"timers.delivery.shop.order.timeout": fmt.Sprintf(
			`{"id":%q,"subject":%q,"attempt":1,"host":"a:443","result":"retry","duration_ms":1}`,
			keys.EventID(key.String(), due.UnixMilli(), 1), key),
	} {
		if _, err := js.Publish(t.Context(), subject, []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := streams.WriteHistory(t.Context(), js, streams.Config{}, event.Entry{Kind: event.EntryGuarded, Time: due,
		Subjects: []string{key.String()}, GuardUnless: "shop:order:paid:42"}); err != nil {
		t.Fatal(err)
	}
	past, caller := history.New(js, keys.Names{}), admin.NewHolds(sched)
	past.Work, past.LogWait = time.Minute, time.Minute // each page is whole, also on a busy machine
	caller.Logger = slog.New(slog.DiscardHandler)
	var late schedule.Lateness
	late.Add(time.Millisecond)
	c, err := console.New(config.Console{Addr: "127.0.0.1:0", Actions: true}, console.Sources{
		Status: func(ctx context.Context) *status.Report {
			return status.Sources{Schedule: sched, JetStream: js}.Gather(ctx)
		},
		Index: sched, Holds: caller.List, History: past, Tail: history.NewTail(past), Policies: policies,
		Pulse: func() history.LiveStats {
			return history.LiveStats{
				At: time.Now(), FiredPerSecond: 0.5, Lateness: late,
				Points:     []history.LivePoint{{At: time.Now(), Fired: 1, Lateness: late}, {At: time.Now()}},
				Namespaces: []history.LiveNamespace{{Name: "shop", FiredPerSecond: 1, Lateness: late}},
			}
		},
	}, &console.Actions{Schedule: sched, Timers: admin.NewTimers(sched), Holds: caller,
		Firings: admin.NewFirings(sched, past), Streams: js}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, server: httptest.NewServer(c.Handler()), timers: timers, holds: caller}
	t.Cleanup(w.server.Close)
	w.check = w.document()
	return w
}

// document returns a checker of answers by the console's own document.
func (w *world) document() validator.Validator {
	w.t.Helper()
	response, err := w.server.Client().Get(w.server.URL + "/api/v1/openapi.json")
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	doc, err := libopenapi.NewDocument(data)
	if err != nil {
		w.t.Fatal(err)
	}
	check, errs := validator.NewValidator(doc)
	if len(errs) > 0 {
		w.t.Fatal(errs)
	}
	if ok, errs := check.ValidateDocument(); !ok {
		for _, e := range errs {
			w.t.Error(e)
		}
	}
	return check
}

// ask sends a request, checks the answer against the document, and returns it.
func (w *world) ask(method, path string, form url.Values, code int) string {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, w.server.URL+path, strings.NewReader(form.Encode()))
	if err != nil {
		w.t.Fatal(err)
	}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	response, err := w.server.Client().Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != code {
		w.t.Errorf("%s %s: %s, want %d", method, path, response.Status, code)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	response.Body = io.NopCloser(strings.NewReader(string(body)))
	if ok, errs := w.check.ValidateHttpResponse(r, response); !ok {
		for _, e := range errs {
			w.t.Errorf("%s %s: %s: %s", method, path, e.Message, e.Reason)
			for _, s := range e.SchemaValidationErrors {
				w.t.Errorf("  %s at %s", s.Reason, s.FieldPath)
			}
		}
		w.t.Logf("%s", body)
	}
	return string(body)
}

// Every answer of the API, in a world with something of everything, fits its schema in the OpenAPI document.
func TestAnswersAreAsTheDocumentSays(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	for i, payload := range []string{`{"a":1}`, "text", "\xff\x00", ""} {
		if _, err := w.timers.Set(ctx, fmt.Sprint("shop:order:timeout:", i), []byte(payload), client.After(time.Hour),
			client.Late(time.Minute), client.Unless("shop:order:paid:1")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.timers.Repeat(ctx, "shop:stock:count:1", []byte("x"), client.Every(time.Hour),
		client.Times(9)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.timers.Set(ctx, "evil:\xff:\u202e:<b>/..", nil, client.After(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.holds.Hold(ctx, schedule.Hold{Namespace: keys.Namespace{App: "shop"}, Reason: "down"},
		time.Hour); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		"/overview", "/timers", "/timers?q=shop:order&state=pending&due=24h&limit=2", "/timers/shop:order:timeout:42",
		"/timers/shop:order:timeout:1",
		"/timers/shop:stock:count:1", "/timers/" + url.PathEscape("evil:\xff:\u202e:<b>/.."), "/repeating", "/dead",
		"/dead?text=used", "/dead/1", "/dead/2", "/holds", "/consumers", "/system", "/system?q=shop&text=paid",
		"/webhooks",
		"/webhooks?failed=1&text=a:443", "/webhooks/1", "/webhooks/2",
		"/search?q=42", "/search?q=shop:order+1", "/search", "/jobs",
	} {
		w.ask(http.MethodGet, "/api/v1"+path, nil, http.StatusOK)
	}
	for path, code := range map[string]int{
		"/timers?state=no": 400, "/timers?place=no": 400, "/timers?limit=0": 400, "/timers/nokey": 404, "/dead/99": 404,
		"/dead?place=x": 400, "/webhooks?place=x": 400,
		"/system?place=x": 400, "/webhooks/99": 404, "/dead?q=a:b:c:d": 400,
		"/repeating?after=x": 400, "/jobs/none": 404,
	} {
		w.ask(http.MethodGet, "/api/v1"+path, nil, code)
	}
	testenv.Eventually(t, 5*time.Minute, func() error { // a busy machine may not open the log in time
		body := w.ask(http.MethodGet, "/api/v1/timers/shop:order:timeout:42", nil, http.StatusOK)
		if !strings.Contains(body, `"result": "retry"`) || !strings.Contains(body, `"event": 1`) {
			return errors.New(body)
		}
		return nil
	}, "a delivery with its event")
	id := func(body string) string {
		_, rest, _ := strings.Cut(body, `"id": "`)
		id, _, _ := strings.Cut(rest, `"`)
		return id
	}
	for _, form := range []url.Values{
		{"do": {"cancel"}, "key": {"shop:order:timeout:1"}}, {"do": {"fire"}, "key": {"shop:order:timeout:2"}},
		{"do": {"resend"}, "key": {"shop:order:timeout:42"}, "seq": {"1", "99"}}, {"do": {"replay"}, "all": {"1"}},
		{"do": {"purge"}, "all": {"1"}}, {"do": {"cancel"}, "all": {"1"}, "q": {"shop:order"}},
	} {
		at := "/api/v1/jobs/" + id(w.ask(http.MethodPost, "/api/v1/jobs", form, http.StatusCreated))
		testenv.Eventually(t, time.Minute, func() bool {
			return strings.Contains(w.ask(http.MethodGet, at, nil, http.StatusOK), `"stage": "asks"`)
		}, "the job to ask for a confirmation")
		w.ask(http.MethodPost, at, url.Values{"confirm": {"yes"}}, http.StatusOK)
	}
	w.ask(http.MethodPost, "/api/v1/jobs", url.Values{"do": {"no"}}, http.StatusBadRequest)
	w.ask(http.MethodPost, "/api/v1/jobs", url.Values{"do": {"cancel"}}, http.StatusUnprocessableEntity)
	w.ask(http.MethodGet, "/api/v1/jobs", nil, http.StatusOK)
}
