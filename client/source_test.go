package client

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/testenv"
)

func TestAPIPrefix(t *testing.T) {
	t.Parallel()
	nc := testenv.NATS(t).Conn()
	plain, err1 := jetstream.New(nc)
	domain, err2 := jetstream.NewWithDomain(nc, "hub")
	prefix, err3 := jetstream.NewWithAPIPrefix(nc, "acme.js")
	dotted, err4 := jetstream.NewWithAPIPrefix(nc, "acme.js.")
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	for want, js := range map[string]jetstream.JetStream{"$JS.API.": plain, "$JS.hub.API.": domain,
		"acme.js.": prefix} {
		if got := apiPrefix(js.Options()); got != want {
			t.Errorf("apiPrefix = %q, want %q", got, want)
		}
	}
	if got := apiPrefix(dotted.Options()); got != "acme.js." {
		t.Errorf("apiPrefix = %q, want acme.js.", got)
	}
}

// A source asks for as many events as it has free handlers, whatever happens to its requests.
func TestSourceRequestsForFreeHandlers(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	js := server.JetStream()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	durable, err := js.CreateConsumer(t.Context(), "S", jetstream.ConsumerConfig{Durable: "d",
		AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	waiting := func(requests int) {
		t.Helper()
		testenv.Eventually(t, time.Minute, func() error {
			info, err := durable.Info(t.Context())
			if err == nil && info.NumWaiting != requests {
				err = fmt.Errorf("%d requests wait, want %d", info.NumWaiting, requests)
			}
			return err
		}, "requests at the server")
	}
	publish := func(n int) {
		t.Helper()
		for range n {
			if _, err := js.Publish(t.Context(), "s", []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
	}
	take := func(s *source) {
		t.Helper()
		select {
		case <-s.events:
		case <-time.After(time.Minute):
			t.Fatal("no event")
		}
	}

	s := newSource(js, "S", "d", 4, slog.New(slog.NewTextHandler(t.Output(), nil)))
	s.want() // nothing to ask on yet
	if err := s.renew(); err != nil {
		t.Fatal(err)
	}
	s.want()
	s.want()
	waiting(3)

	// Anew, all in one request, after a while and after a fault.
	first := s.inbox.Subject
	if err := s.tend(); err != nil || s.inbox.Subject != first {
		t.Fatalf("tend renewed at once, or failed: %v", err)
	}
	s.mu.Lock()
	s.began = s.began.Add(-renewEvery - time.Second)
	s.mu.Unlock()
	if err := s.tend(); err != nil || s.inbox.Subject == first {
		t.Fatalf("tend did not renew the old request: %v", err)
	}
	waiting(1)
	s.mu.Lock()
	s.heard = s.heard.Add(-2*heartbeat - time.Second)
	s.mu.Unlock()
	if err := s.tend(); !errors.Is(err, errSilent) {
		t.Fatalf("tend = %v of a silent server", err)
	}
	if err := s.renew(); err != nil {
		t.Fatal(err)
	}
	waiting(1)

	// Three handlers are free: three of five events come.
	publish(5)
	for range 3 {
		take(s)
	}
	waiting(0)
	s.want()
	take(s)
	if n := len(s.events); n != 0 {
		t.Errorf("%d events came that nobody wanted", n)
	}

	// What no handler takes any more goes back.
	s.want()
	testenv.Eventually(t, time.Minute, func() bool { return len(s.events) == 1 }, "the fifth event")
	s.close(t.Context())
	if msg, err := durable.Next(jetstream.FetchMaxWait(time.Minute)); err != nil {
		t.Errorf("the fifth event was not given back: %v", err)
	} else if meta, err := msg.Metadata(); err != nil || meta.Sequence.Stream != 5 || meta.NumDelivered != 2 {
		t.Errorf("after the close: %+v, %v; want the second delivery of the fifth event", meta, err)
	}
}

// A consumer or a JetStream that is not there shows as a fault.
func TestSourceReportsFaults(t *testing.T) {
	t.Parallel()
	js := testenv.NATS(t).JetStream()
	s := newSource(js, "S", "d", 1, slog.Default())
	s.want()
	if err := s.renew(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-s.faults:
		if err == nil {
			t.Error("a nil fault")
		}
	case <-time.After(time.Minute):
		t.Error("no fault")
	}
	s.close(t.Context())
	js.Conn().Close()
	if err := s.renew(); err == nil {
		t.Error("renew on a closed connection = nil")
	}
}

func TestLedger(t *testing.T) {
	t.Parallel()
	l := newRedeliveries()
	begin := func(seq uint64, wantFresh, wantSettled bool) {
		t.Helper()
		if fresh, settled := l.begin(place{seq: seq}); fresh != wantFresh || settled != wantSettled {
			t.Errorf("begin(%d) = %t, %t; want %t, %t", seq, fresh, settled, wantFresh, wantSettled)
		}
	}
	begin(1, true, false)
	begin(1, false, false) // with a handler
	l.end(place{seq: 1}, false)
	begin(1, true, false) // it comes again
	l.end(place{seq: 1}, true)
	begin(1, false, true)
	for seq := uint64(2); seq <= maxSettled+1; seq++ {
		begin(seq, true, false)
		l.end(place{seq: seq}, true)
	}
	begin(1, true, false) // too long ago
	begin(2, false, true)
	begin(maxSettled+1, false, true)
	if n := len(l.settled); n != maxSettled {
		t.Errorf("%d events remembered, want %d", n, maxSettled)
	}
	if fresh, _ := l.begin(place{seq: 2, stored: time.Unix(1, 0)}); !fresh {
		t.Error("a message of a new stream taken for one of the old")
	}
}

// However many handlers are free, few requests wait at the server, and each event finds a handler. So the consumer's
// max_waiting, which JetStream refuses to change, suits any concurrency.
func TestSourceMakesFewRequests(t *testing.T) {
	t.Parallel()
	const handlers, most = 1024, 48
	js := testenv.NATS(t).JetStream()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	durable, err := js.CreateConsumer(t.Context(), "S", jetstream.ConsumerConfig{
		Durable: "d", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: -1, MaxWaiting: most,
	})
	if err != nil {
		t.Fatal(err)
	}
	s := newSource(js, "S", "d", handlers, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err := s.renew(); err != nil {
		t.Fatal(err)
	}
	defer s.close(t.Context())
	for range handlers {
		s.want()
	}
	for i := range handlers { // each request is for one more at first, and is used up in turn
		if _, err := js.Publish(t.Context(), "s", []byte("x")); err != nil {
			t.Fatal(err)
		}
		select {
		case <-s.events:
			s.want()
		case fault := <-s.faults:
			t.Fatalf("after %d events: %v", i, fault)
		case <-time.After(time.Minute):
			t.Fatalf("no event after %d", i)
		}
	}
	for i := range handlers { // all of them together, though not all are asked for at a time
		if _, err := js.PublishAsync("s", []byte("x")); err != nil {
			t.Fatalf("event %d: %v", i, err)
		}
	}
	testenv.Eventually(t, time.Minute, func() bool { return len(s.events) == handlers },
		"an event for each free handler")
	if info, err := durable.Info(t.Context()); err != nil || info.NumWaiting != 0 {
		t.Errorf("%d requests wait for nobody, %v", info.NumWaiting, err)
	}
	select {
	case fault := <-s.faults:
		t.Error(fault)
	default:
	}
}
