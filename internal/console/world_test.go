package console_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/console"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// world is a console over a Redis and a NATS without a timerd: nothing fires by itself.
type world struct {
	t      testing.TB
	redis  *testenv.RedisServer
	rdb    redis.UniversalClient // of it, if no other Redis is given
	nats   *testenv.NATSServer
	sched  *schedule.Schedule
	timers *client.Timers
	js     jetstream.JetStream
	log    testenv.Output

	settings   config.Console
	server     *httptest.Server
	password   string
	pulse      func() history.LiveStats
	guards     string // TIMERD_GUARD
	sendBuffer int    // of each connection, in bytes; 0: as the system does
}

// newWorld returns a console. The settings may be changed before it is made.
func newWorld(t testing.TB, change ...func(*world)) *world {
	t.Helper()
	w := &world{t: t, redis: testenv.Redis(t), nats: testenv.NATS(t)}
	w.settings = config.Console{Addr: "127.0.0.1:8081", Actions: true}
	w.pulse = func() history.LiveStats { return history.LiveStats{} }
	for _, f := range change {
		f(w)
	}
	if w.rdb == nil {
		w.rdb = w.redis.Client()
	}
	w.js = w.nats.JetStream()
	w.sched, w.timers = schedule.New(w.rdb, schedule.DefaultMaxPayload), client.New(w.rdb)
	if _, err := w.sched.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := streams.Ensure(t.Context(), w.js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	w.start()
	return w
}

func (w *world) start() {
	w.t.Helper()
	policies, err := policy.ParseRetries("*=10s,30s,2m")
	if err != nil {
		w.t.Fatal(err)
	}
	guards, err := policy.ParseGuards(w.guards)
	if err != nil {
		w.t.Fatal(err)
	}
	caller := admin.NewHolds(w.sched)
	caller.Logger = slog.New(slog.DiscardHandler)
	past := history.New(w.js, keys.Names{})
	past.Work, past.LogWait = time.Minute, time.Minute // each page is whole, also on a busy machine
	var actions *console.Actions
	if w.settings.Actions {
		actions = &console.Actions{Schedule: w.sched, Timers: admin.NewTimers(w.sched), Holds: caller,
			Firings: admin.NewFirings(w.sched, past), Streams: w.js,
			Journal: admin.NewJournal(func() (jetstream.JetStream, error) { return w.js, nil }, streams.Config{},
				event.ViaConsole, func(err error) { _, _ = fmt.Fprintln(&w.log, "not in the history:", err) })}
	}
	c, err := console.New(w.settings, console.Sources{
		Status: func(ctx context.Context) *status.Report {
			from := status.Sources{Schedule: w.sched, JetStream: w.js}
			if !w.js.Conn().IsConnected() {
				from.JetStream, from.NoNATS = nil, diag.Finding{Text: "NATS is away", Fix: "bring it back"}
			}
			return from.Gather(ctx)
		},
		Index: w.sched, Holds: caller.List, History: past, Tail: history.NewTail(past),
		Pulse: func() history.LiveStats { return w.pulse() }, Policies: policies, Guards: guards,
	}, actions, slog.New(slog.NewTextHandler(&w.log, nil)))
	if err != nil {
		w.t.Fatal(err)
	}
	w.server = httptest.NewUnstartedServer(c.Handler())
	if w.sendBuffer > 0 {
		w.server.Config.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
			if tcp, ok := conn.(*net.TCPConn); !ok || tcp.SetWriteBuffer(w.sendBuffer) != nil {
				w.t.Errorf("no send buffer of %d bytes: %T", w.sendBuffer, conn)
			}
			return ctx
		}
	}
	w.server.Start()
	w.t.Cleanup(w.server.Close)
}

// set sets a timer that is due in an hour.
func (w *world) set(key, payload string) {
	w.t.Helper()
	if _, err := w.timers.Set(w.t.Context(), key, []byte(payload), client.After(time.Hour)); err != nil {
		w.t.Fatal(err)
	}
}

// answer is an answer with its body.
type answer struct {
	*http.Response
	body string
}

// do sends a request without following redirections.
func (w *world) do(r *http.Request) answer {
	w.t.Helper()
	if w.password != "" {
		r.SetBasicAuth("timerd", w.password)
	}
	transport := http.Transport{DisableKeepAlives: true}
	response, err := transport.RoundTrip(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return answer{response, string(body)}
}

func (w *world) request(method, path string, form url.Values) *http.Request {
	w.t.Helper()
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	r, err := http.NewRequestWithContext(w.t.Context(), method, w.server.URL+path, body)
	if err != nil {
		w.t.Fatal(err)
	}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return r
}

func (w *world) get(path string) answer {
	w.t.Helper()
	return w.do(w.request(http.MethodGet, path, nil))
}

func (w *world) post(path string, form url.Values) answer {
	w.t.Helper()
	return w.do(w.request(http.MethodPost, path, form))
}

// page gets a page that has to be there.
func (w *world) page(path string) string {
	w.t.Helper()
	a := w.get(path)
	if a.StatusCode != http.StatusOK {
		w.t.Fatalf("GET %s: %s\n%s", path, a.Status, a.body)
	}
	return a.body
}

// until gets a page until it is as wanted: a busy machine may not have its contents within the time of a page, which
// says so then.
func (w *world) until(path string, is func(text string) bool) {
	w.t.Helper()
	testenv.Eventually(w.t, time.Minute, func() error {
		if a := w.get(path); !is(a.body) {
			return fmt.Errorf("%s\n%s", a.Status, a.body)
		}
		return nil
	}, path)
}

// shows gets a page until it has some texts.
func (w *world) shows(path string, texts ...string) {
	w.t.Helper()
	w.until(path, func(page string) bool {
		return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(page, text) })
	})
}

// fresh gets a page that has to be there, once what the pages share is read again.
func (w *world) fresh(path string) string {
	w.t.Helper()
	w.server.Close()
	w.start()
	return w.page(path)
}

// has fails unless a text has all of the others.
func has(t testing.TB, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}

// act asks for an action, confirms it, and returns the page with the result.
func (w *world) act(form, confirm url.Values, asked ...string) string {
	w.t.Helper()
	a := w.post("/actions", form)
	at := a.Header.Get("Location")
	if a.StatusCode != http.StatusSeeOther || !strings.HasPrefix(at, "/jobs/") {
		w.t.Fatalf("%v: %s\n%s", form, a.Status, a.body)
	}
	var text string
	testenv.Eventually(w.t, time.Minute, func() bool {
		text = w.page(at)
		return strings.Contains(text,
			`name="confirm"`)
	}, "the question")
	has(w.t, text, asked...)
	if confirm == nil {
		confirm = url.Values{}
	}
	confirm.Set("confirm", "yes")
	if a := w.post(at, confirm); a.StatusCode != http.StatusSeeOther {
		w.t.Fatalf("%v: %s\n%s", confirm, a.Status, a.body)
	}
	testenv.Eventually(w.t, time.Minute, func() bool {
		text = w.page(at)
		return strings.Contains(text,
			"Go back</a>")
	}, "the end of the action")
	return text
}
