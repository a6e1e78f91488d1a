package notify_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/notify"
)

func TestFullStreamHoldsFiringsBack(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	js := nats.JetStream()
	config := jetstream.StreamConfig{Name: "TIMERS", Subjects: []string{"timers.fired.>"},
		Discard: jetstream.DiscardNew, MaxMsgs: 5}
	stream, err := js.CreateStream(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, nats, nats.URL(), nil, nil)
	collector := testenv.Collect(t, js, "TIMERS")
	all := firings(0, 20, "x")
	for i := 15; i < 20; i++ {
		all[i].Lease = 500 * time.Millisecond
	}
	r.publish(t, all...)
	r.settler.expect(t, 5, 5)
	r.healthy(t, 5*time.Second, "it is full: 5 messages of at most 5")
	r.blocked(t)
	collector.Stays(5, 300*time.Millisecond)
	if n := r.metrics.counts().failed[notify.FailureFull]; n > 100 {
		t.Errorf("%d refusals: it keeps trying a stream that is full", n)
	}

	waited := make(chan error, 1)
	go func() { waited <- r.Wait(t.Context(), "") }()
	for round := range 2 {
		collector.WaitFunc(patience, func(all []testenv.Message) error { // a purge takes them from it, too
			info, err := stream.Info(t.Context())
			if err != nil || info.State.Msgs < 5 || len(all) < 5*(round+1) {
				return errors.Join(fmt.Errorf("not full, or only %d messages came", len(all)), err)
			}
			return nil
		})
		if err := stream.Purge(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r.settler.expect(t, 15, 5)
	collector.Wait(15, patience)
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Errorf("Wait: %v", err)
	}
	r.healthy(t, patience, "")
	if dup := collector.DuplicateIDs(); len(dup) > 0 {
		t.Errorf("stored twice: %v", dup)
	}
}

func TestStreamFullOfBytesHoldsFiringsBack(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	js := nats.JetStream()
	config := jetstream.StreamConfig{Name: "TIMERS", Subjects: []string{"timers.fired.>"},
		Discard: jetstream.DiscardNew, MaxBytes: 20_000}
	stream, err := js.CreateStream(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, nats, nats.URL(), nil, nil)
	r.publish(t, firings(0, 3, strings.Repeat("x", 8_000))...)
	r.settler.expect(t, 2, 0)
	r.healthy(t, 5*time.Second, "of at most 20000")
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.settler.expect(t, 3, 0)
	r.healthy(t, patience, "")
}

func TestDeletedStreamIsMadeAgain(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	r := start(t, nats, nats.URL(), nil, nil)
	first := firings(0, 5, "x")
	r.publish(t, first...)
	r.settler.expect(t, 5, 0)
	if err := r.js.DeleteStream(t.Context(), "TIMERS"); err != nil {
		t.Fatal(err)
	}
	second := firings(5, 50, "x")
	r.publish(t, second...)
	r.settler.expect(t, 55, 0)
	checkStream(t, testenv.Collect(t, r.js, "TIMERS"), second)
	r.healthy(t, patience, "")
	if r.metrics.counts().failed[notify.FailureNoStream] == 0 {
		t.Error("counted no missing stream")
	}
}

func TestDeletedStreamIsMissedWithoutFirings(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	r := start(t, nats, nats.URL(), nil, nil)
	r.healthy(t, patience, "")
	// The publisher may have made the stream again in between.
	testenv.Eventually(t, patience, func() error {
		if err := r.js.DeleteStream(t.Context(), "TIMERS"); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return err
		}
		if _, err := r.js.CreateOrUpdateStream(t.Context(),
			jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"timers.fired.x.>"}}); err != nil {
			return err
		}
		if _, err := r.js.Stream(t.Context(), "TIMERS"); !errors.Is(err, jetstream.ErrStreamNotFound) {
			return errors.Join(errors.New("stream TIMERS is there"), err)
		}
		return nil
	}, "another stream in the place of TIMERS")
	r.healthy(t, 5*time.Second, "because stream OTHER takes timers.fired.x.>")
	r.blocked(t)
	if err := r.js.DeleteStream(t.Context(), "OTHER"); err != nil {
		t.Fatal(err)
	}
	r.healthy(t, 10*time.Second, "")
}

func TestUnfitStreamIsNoticed(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	r := start(t, nats, nats.URL(), nil, nil)
	r.healthy(t, patience, "")
	stream, err := r.js.Stream(t.Context(), "TIMERS")
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	config.Subjects = []string{"timers.fired.a.>"}
	if _, err := r.js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	all := firings(0, 3, "x")
	r.publish(t, all...)
	r.healthy(t, 5*time.Second, "nats stream edit TIMERS --subjects 'timers.fired.>'")
	config.Subjects = []string{"timers.fired.>"}
	if _, err := r.js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	r.settler.expect(t, 3, 0)
	checkStream(t, testenv.Collect(t, r.js, "TIMERS"), all)
}

// A server without room refuses events, and gives no other sign. The reason stands until an event is stored, and is
// logged once.
func TestFullServerHoldsFiringsBack(t *testing.T) {
	t.Parallel()
	const room = 1 << 20
	nats := testenv.NATS(t, func(o *server.Options) { o.JetStreamMaxStore = room })
	var log testenv.Output
	r := start(t, nats, nats.URL(), nil,
		func(p *notify.Publisher) { p.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	r.publish(t, firings(0, 2, strings.Repeat("x", room/2))...)
	r.settler.expect(t, 2, 0)
	r.publish(t, firings(2, 50, "x")...)
	r.healthy(t, patience, "no more room for JetStream (max_file_store): nats: API error: code=503 err_code=10023 "+
		"description=insufficient resources; to fix it: raise max_file_store")
	tries, well := r.metrics.counts().failed[notify.FailureUnavailable], false
	testenv.Eventually(t, patience, func() bool {
		well = well || r.Healthy() == nil
		return r.metrics.counts().failed[notify.FailureUnavailable] >= tries+3
	}, "events that are tried")
	text := log.String()
	if n := strings.Count(text, "events wait until the stream takes them"); well || n != 1 ||
		strings.Contains(text, "takes events again") {
		t.Errorf("well in between: %t; it logged:\n%s", well, text)
	}
	stream, err := r.js.Stream(t.Context(), "TIMERS")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.healthy(t, 10*time.Second, "")
	r.settler.expect(t, 52, 0)
}
