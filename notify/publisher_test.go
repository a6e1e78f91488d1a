package notify_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/notify"
	"github.com/timerd-io/timerd/schedule"
)

const (
	patience = time.Minute
	// longWait is for limits that a test does not wait for: no machine is slow enough to reach them.
	longWait = 2 * time.Minute
)

// running is a publisher at work.
type running struct {
	*notify.Publisher
	nc      *nats.Conn
	js      jetstream.JetStream // on a connection of its own
	settler *settlerRecorder
	metrics *metrics
	cancel  context.CancelFunc
	ended   chan struct{} // closed when Run has returned
}

// natsServer is a NATS server of a test.
type natsServer interface {
	JetStream(opts ...nats.Option) jetstream.JetStream
}

// start makes the streams and runs a publisher that connects to url. configure may change it first.
func start(t *testing.T, server natsServer, url string, settler notify.Settler,
	configure func(*notify.Publisher)) *running {
	t.Helper()
	r := &running{js: server.JetStream(), settler: &settlerRecorder{}, metrics: newMetrics(),
		ended: make(chan struct{})}
	nc, err := nats.Connect(url,
		append(connect.NATSOptions(), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectJitter(0, 0))...)
	if err != nil {
		t.Fatal(err)
	}
	r.nc = nc
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if settler == nil {
		settler = r.settler
	}
	r.Publisher = notify.NewPublisher(nc, js, settler)
	r.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	r.AckWait, r.DrainTimeout = longWait, patience
	r.Metrics = r.metrics
	if configure != nil {
		configure(r.Publisher)
	}
	if err := streams.Ensure(t.Context(), r.js, r.Streams); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() {
		defer close(r.ended)
		if err := r.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	t.Cleanup(func() {
		r.stop(t)
		nc.Close()
	})
	return r
}

// stop ends the publisher and waits until Run has returned.
func (r *running) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	select {
	case <-r.ended:
	case <-time.After(longWait):
		t.Error("Run does not end")
	}
}

// publish hands firings over as the reconciler does.
func (r *running) publish(t *testing.T, firings ...schedule.Firing) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := r.Publish(ctx, firings); err != nil {
		t.Fatalf("Publish: %v", err)
	}
}

const lease = 10 * time.Minute

// firing returns a firing that was claimed now and was due a moment ago.
func firing(k keys.Key, payload string) schedule.Firing {
	now := time.Now()
	due := now.UnixMilli() - 3
	return schedule.Firing{
		Ref: fmt.Sprintf("%d::%s", schedule.Millis(due), k), Key: k, Due: schedule.Millis(due),
		Payload: []byte(payload), Trigger: schedule.TriggerDeadline,
		ClaimedAt: now, Received: now, Lease: lease,
	}
}

func firings(from, n int, payload string) []schedule.Firing {
	all := make([]schedule.Firing, n)
	for i := range all {
		all[i] = firing(keys.Key{App: "app1", Module: "trans", Type: "notice", ID: fmt.Sprint(from + i)}, payload)
	}
	return all
}

// checkStream waits for exactly these firings in the stream, each once and under its id, and returns their events by
// key.
func checkStream(t *testing.T, c *testenv.Collector, want []schedule.Firing) map[string]event.Event {
	t.Helper()
	events := make(map[string]event.Event)
	for _, m := range c.Wait(len(want), patience) {
		e, err := event.Parse(m.Data)
		if err != nil {
			t.Fatalf("message %d: %v", m.Seq, err)
		}
		if m.ID() != e.ID || m.Header.Get("Content-Type") != "application/cloudevents+json" ||
			m.Subject != e.Key.Subject("timers", keys.Fired) {
			t.Errorf("message %d of %s has subject %s and headers %v", m.Seq, e.ID, m.Subject, m.Header)
		}
		events[e.Key.String()] = e
	}
	for _, f := range want {
		e, ok := events[f.Key.String()]
		if !ok {
			t.Errorf("%s did not fire", f.Key)
			continue
		}
		if !e.Due.Equal(f.Due.Time()) || e.Trigger != string(f.Trigger) ||
			e.ID != keys.EventID(f.Key.String(), int64(f.Due), e.Attempt) || e.Time.Before(e.Due) {
			t.Errorf("%s fired as %+v", f.Key, e)
		}
	}
	if dup := c.DuplicateIDs(); len(dup) > 0 {
		t.Errorf("stored twice: %v", dup)
	}
	return events
}

func TestPublishedFiringsAreSettled(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	r := start(t, server, server.URL(), nil, func(p *notify.Publisher) {
		p.MaxAttempts = func(keys.Key) int { return 16 }
	})
	collector := testenv.Collect(t, r.js, "TIMERS")
	all := firings(0, 1000, `{"order":42}`)
	began := time.Now()
	for batch := range slices.Chunk(all, 128) {
		if err := r.Wait(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		r.publish(t, batch...)
	}
	for _, e := range checkStream(t, collector, all) {
		if e.Attempt != 1 || e.MaxAttempts != 16 || string(e.Data) != `{"order":42}` || e.Type != event.TypeFired ||
			e.Status != "" {
			t.Fatalf("event is %+v", e)
		}
	}
	r.settler.expect(t, 1000, 0)
	testenv.Eventually(t, patience, func() bool { return r.InFlight() == 0 }, "an empty window")
	r.stop(t)
	if c := r.metrics.counts(); c.fired != 1000 || c.settled != 1000 || c.released != 0 || c.duplicates != 0 ||
		c.early != 0 || len(c.failed) > 0 {
		t.Errorf("counted %+v", c)
	}
	// A call settles 256 firings, or all firings of 20 ms.
	if _, _, calls := r.settler.counts(); calls > 1000/256+int(time.Since(began)/(20*time.Millisecond))+1 {
		t.Errorf("%d calls to settle 1000 firings within %v", calls, time.Since(began))
	}
}

func TestPayloadsAttemptsAndStatus(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	logged := make(lines, 100)
	r := start(t, server, server.URL(), nil, func(p *notify.Publisher) {
		p.Logger = slog.New(slog.NewTextHandler(logged, nil))
		p.MaxAttempts = func(keys.Key) int { return 3 }
	})
	collector := testenv.Collect(t, r.js, "TIMERS")
	k := func(id string) keys.Key { return keys.Key{App: "a", Module: "b", Type: "c", ID: id} }
	missing, large, empty, own, retried := firing(k("missing"), ""), firing(k("large"), ""), firing(k("empty"),
		""), firing(k("own"), `{"attempt":3}`), firing(k("retried"), `{"attempt":3}`)
	beyond := firing(k("beyond"), `{"attempt":4}`)
	missing.Payload, missing.Status = nil, schedule.PayloadMissing
	large.Payload, large.Status = nil, schedule.PayloadTooLarge
	empty.Payload = nil
	retried.Attempt = 7
	all := []schedule.Firing{missing, large, empty, own, retried, beyond}
	r.publish(t, all...)
	events := checkStream(t, collector, all)
	for id, want := range map[string]struct {
		status, data string
		none         bool
		attempt      int
	}{
		"missing": {status: event.StatusMissing, none: true, attempt: 1},
		"large":   {status: event.StatusTooLarge, none: true, attempt: 1},
		"empty":   {attempt: 1},
		"own":     {data: `{"attempt":3}`, attempt: 3},
		"retried": {data: `{"attempt":3}`, attempt: 7},
		"beyond":  {data: `{"attempt":4}`, attempt: 1},
	} {
		e := events["a:b:c:"+id]
		if e.Status != want.status || string(e.Data) != want.data || (e.Data == nil) != want.none ||
			e.Attempt != want.attempt {
			t.Errorf("%s fired as %+v", id, e)
		}
	}
	for _, want := range []string{`key=a:b:c:missing`, `key=a:b:c:large`} {
		if line := <-logged; !strings.Contains(line, `msg="timer fires without its payload" `+want) {
			t.Errorf("logged %q, want the one about %s", line, want)
		}
	}
}

// lines is a writer of log lines.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}

func parseKey(t *testing.T, s string) keys.Key {
	t.Helper()
	k, err := keys.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestHostileKeysFireOnTheirSubjects(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	r := start(t, server, server.URL(), nil, nil)
	collector := testenv.Collect(t, r.js, "TIMERS")
	var all []schedule.Firing
	for s, subject := range map[string]string{
		"a.b:*:>:x":                     "timers.fired.a%2Eb.%2A.%3E",
		"a b:\t:c:with space":           "timers.fired.a%20b.%09.c",
		"a:b:c:\r\nNats-Msg-Id: evil":   "timers.fired.a.b.c",
		"a:b:c: \r\nNats-Msg-Id: evil ": "timers.fired.a.b.c",
		"a\x00:b\xff:c\x7f:\x00\xfe":    "timers.fired.a%00.b%FF.c%7F",
		"日本:b:c:ü":                      "timers.fired.%E6%97%A5%E6%9C%AC.b.c",
		"a%2E:b:c:%":                    "timers.fired.a%252E.b.c",
		"$JS:API:INFO:x":                "timers.fired.%24JS.API.INFO",
		strings.Repeat("\xff", 128) + ":b:c:" + strings.Repeat("\n",
			891): "timers.fired." + strings.Repeat("%FF",
			128) + ".b.c",
		strings.Repeat(".", 128) + ":" + strings.Repeat(">", 128) + ":" + strings.Repeat("*", 128) + ":" +
			strings.Repeat("x", 637): "timers.fired." + strings.Repeat("%2E", 128) + "." + strings.Repeat("%3E", 128) +
			"." + strings.Repeat("%2A", 128),
	} {
		f := firing(parseKey(t, s), "payload of "+subject)
		all = append(all, f)
	}
	r.publish(t, all...)
	events := checkStream(t, collector, all)
	subjects := make(map[string]string)
	ids := make(map[string]bool)
	for _, m := range collector.All() {
		e, err := event.Parse(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		subjects[e.Key.String()] = m.Subject
		ids[m.ID()] = true
	}
	for s, e := range events {
		if string(e.Data) != "payload of "+subjects[s] {
			t.Errorf("%q went to %s with %q", s, subjects[s], e.Data)
		}
	}
	if len(ids) != len(all) {
		t.Errorf("%d ids for %d firings: %v", len(ids), len(all), slices.Collect(maps.Keys(ids)))
	}
	r.settler.expect(t, len(all), 0)
}

func TestSettlingIsTriedUntilItWorks(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	r := start(t, server, server.URL(), nil, func(p *notify.Publisher) { p.Window = 300 })
	collector := testenv.Collect(t, r.js, "TIMERS")
	r.settler.failWith(errors.New("Redis is away"))
	all := firings(0, 300, "x")
	r.publish(t, all...)
	checkStream(t, collector, all)
	testenv.Eventually(t, patience, func() bool { _, _, calls := r.settler.counts(); return calls >= 3 },
		"several tries")

	// The window is full of unsettled firings, so no more may be claimed.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := r.Wait(ctx, ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait returned %v with a full window", err)
	}
	waited := make(chan error, 1)
	go func() { waited <- r.Wait(t.Context(), "") }()
	r.settler.failWith(nil)
	if err := <-waited; err != nil {
		t.Errorf("Wait: %v", err)
	}
	r.settler.expect(t, 300, 0)
	collector.Stays(300, 100*time.Millisecond)
}

func TestExpiredLeaseIsNotPublished(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	r := start(t, server, server.URL(), nil, nil)
	collector := testenv.Collect(t, r.js, "TIMERS")
	all := firings(0, 3, "x")
	all[0].Received = time.Now().Add(-lease - time.Second) // as after a long stop
	all[1].Received = time.Now().Add(-lease + 900*time.Millisecond)
	all[2].Lease, all[2].Received = 100*time.Millisecond, time.Now().Add(-95*time.Millisecond)
	r.publish(t, all...)
	r.settler.expect(t, 0, 3)
	if c := r.metrics.counts(); len(c.failed) > 0 {
		t.Errorf("counted failures %v", c.failed)
	}
	good := firings(3, 1, "x")
	r.publish(t, good...)
	r.settler.expect(t, 1, 3)
	checkStream(t, collector, good)
	collector.Stays(1, 100*time.Millisecond)
}

func TestWindowBoundsFiringsAndBytes(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	proxy := testenv.NewProxy(t, server.Addr())
	r := start(t, server, "nats://"+proxy.Addr(), nil, func(p *notify.Publisher) {
		p.Window, p.WindowBytes = 10, 3000
	})
	collector := testenv.Collect(t, r.js, "TIMERS")
	proxy.Delay(100 * time.Millisecond)
	all := slices.Concat(firings(0, 15, "x"), firings(15, 5, strings.Repeat("x", 1000)))
	done := make(chan struct{})
	var most atomic.Int64
	go func() {
		defer close(done)
		r.publish(t, all...)
	}()
	testenv.Eventually(t, patience, func() bool {
		most.Store(max(most.Load(), int64(r.InFlight())))
		select {
		case <-done:
			return true
		default:
			return false
		}
	}, "publishing")
	if n := most.Load(); n > 10 {
		t.Errorf("%d firings in flight, want at most 10", n)
	}
	checkStream(t, collector, all)
	r.settler.expect(t, 20, 0)
}
