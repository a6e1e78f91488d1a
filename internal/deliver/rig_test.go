package deliver_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/deliver"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// patience bounds every wait of the tests.
const patience = time.Minute

// rig is a NATS server with timerd's streams, and the messages published there.
type rig struct {
	t     testing.TB
	nats  *testenv.NATSServer
	js    jetstream.JetStream
	retry *testenv.Collector
	dead  *testenv.Collector
	log   *testenv.Collector
	out   testenv.Output
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{t: t, nats: testenv.NATS(t)}
	r.js = r.nats.JetStream()
	for _, c := range []jetstream.StreamConfig{
		{Name: "TIMERS", Subjects: []string{"timers.fired.>"}},
		{Name: "TIMERS_RETRY", Subjects: []string{"timers.retry.>"}}, // no work queue: it is collected, not carried out
		{Name: "TIMERS_DEAD", Subjects: []string{"timers.dead.>"}, AllowDirect: true},
	} {
		if _, err := r.js.CreateStream(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	if err := streams.EnsureDelivery(t.Context(), r.js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	r.retry = testenv.Collect(t, r.js, "TIMERS_RETRY")
	r.dead = testenv.Collect(t, r.js, "TIMERS_DEAD")
	r.log = testenv.Collect(t, r.js, "TIMERS_DELIVERY")
	return r
}

// deliver runs a Deliverer until the returned function is called, or the test ends.
func (r *rig) deliver(config *deliver.Config, opts ...func(*deliver.Deliverer)) (d *deliver.Deliverer, stop func()) {
	r.t.Helper()
	return r.deliverOver(r.nats.JetStream(), config, opts...)
}

// deliverOver is deliver with a connection of its own.
func (r *rig) deliverOver(js jetstream.JetStream, config *deliver.Config,
	opts ...func(*deliver.Deliverer)) (d *deliver.Deliverer, stop func()) {
	r.t.Helper()
	d = deliver.New(js, config)
	d.Calls = 256
	d.Logger = r.out.Logger()
	d.EnsureLog = func(ctx context.Context) error { return streams.EnsureDelivery(ctx, r.js, streams.Config{}) }
	for _, opt := range opts {
		opt(d)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := d.Run(ctx); err != nil {
			r.t.Errorf("Run: %v", err)
		}
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(patience):
			r.t.Error("Run does not end")
		}
	})
	r.t.Cleanup(stop)
	return d, stop
}

// fired is the first of three attempts of a timer that was due just now.
func fired(key string, payload []byte) event.Event {
	k, err := keys.Parse(key)
	if err != nil {
		panic(err)
	}
	due := time.Now().UTC().Truncate(time.Millisecond)
	e := event.Event{
		ID: keys.EventID(key, due.UnixMilli(), 1), Type: event.TypeFired, Key: k, Time: due, Due: due, Attempt: 1,
		MaxAttempts: 3,
		Trigger:     "deadline", Data: payload,
	}
	if payload == nil {
		e.Status = event.StatusMissing
	}
	return e
}

// attempt makes e a later attempt.
func attempt(e event.Event, n int) event.Event {
	e.Attempt = n
	e.ID = keys.EventID(e.Key.String(), e.Due.UnixMilli(), n)
	return e
}

func (r *rig) publish(all ...event.Event) {
	r.t.Helper()
	for _, e := range all {
		m := &nats.Msg{Subject: e.Key.Subject("timers", keys.Fired), Data: e.AppendJSON(nil),
			Header: nats.Header{nats.MsgIdHdr: {e.ID}}}
		testenv.Eventually(r.t, patience, func() error { // also while NATS restarts; twice is once
			_, err := r.js.PublishMsg(r.t.Context(), m)
			return err
		}, "an event published")
	}
}

// records waits until the log has n records, and returns them by the ids of their timers.
func (r *rig) records(n int) map[string][]event.Delivery {
	r.t.Helper()
	all := map[string][]event.Delivery{}
	for _, m := range r.log.Wait(n, patience) {
		record, err := event.ParseDelivery(m.Data)
		if err != nil {
			r.t.Fatal(err)
		}
		id := record.Subject[strings.LastIndexByte(record.Subject, ':')+1:]
		all[id] = append(all[id], record)
	}
	return all
}

// settled waits until nothing of a durable consumer is open.
func (r *rig) settled(durable string) {
	r.t.Helper()
	testenv.Eventually(r.t, patience, func() error {
		c, err := r.js.Consumer(r.t.Context(), "TIMERS", durable)
		if err != nil {
			return err
		}
		if info := c.CachedInfo(); info.NumPending > 0 || info.NumAckPending > 0 {
			return fmt.Errorf("%d pending, %d not acknowledged", info.NumPending, info.NumAckPending)
		}
		return nil
	}, "everything acknowledged")
}

// request is a receiver's request.
type request struct {
	header http.Header
	body   []byte
	path   string
	proto  string
	host   string
}

// receiver is an HTTP server that keeps its requests.
type receiver struct {
	*httptest.Server

	mu  sync.Mutex
	all []request
}

// receive starts a receiver. Without answer it says 200.
func receive(t testing.TB, answer http.HandlerFunc, change ...func(*httptest.Server)) *receiver {
	t.Helper()
	v := &receiver{}
	v.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("receiver: %v", err)
		}
		v.mu.Lock()
		v.all = append(v.all, request{r.Header.Clone(), body, r.URL.String(), r.Proto, r.Host})
		v.mu.Unlock()
		if answer != nil {
			answer(w, r)
		}
	}))
	for _, c := range change {
		c(v.Server)
	}
	if v.URL == "" {
		v.Start()
	}
	t.Cleanup(v.Close)
	return v
}

func (v *receiver) requests() []request {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.all)
}

// wait waits until the receiver has n requests.
func (v *receiver) wait(t testing.TB, n int) []request {
	t.Helper()
	testenv.Eventually(t, patience, func() error {
		if got := len(v.requests()); got < n {
			return fmt.Errorf("%d requests, want %d", got, n)
		}
		return nil
	}, "requests")
	return v.requests()
}

// local has the fields of endpoints on this machine.
const local = "ports: any, allow_private: [127.0.0.0/8, '::1']"

// to returns a file with one endpoint, for pay, and further fields of it.
func to(url string, fields ...string) string {
	text := "endpoints:\n- match: pay\n  url: '" + url + "'\n  " + strings.Replace(local, ", allow", "\n  allow", 1) +
		"\n"
	for _, field := range fields {
		text += "  " + field + "\n"
	}
	return text
}
