package notify_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/notify"
)

// healthy waits until Healthy returns an error with this text, or nil for "". A stalled machine has more time.
func (r *running) healthy(t *testing.T, within time.Duration, text string) {
	t.Helper()
	testenv.Promptly(t, within, func() error {
		err := r.Healthy()
		if text == "" && err == nil || text != "" && err != nil && strings.Contains(err.Error(), text) {
			return nil
		}
		return errors.Join(errors.New("it says"), err)
	}, "health "+text)
}

// blocked checks that Wait does not return for a moment.
func (r *running) blocked(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := r.Wait(ctx, ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait returned %v, want it to wait", err)
	}
}

func TestRestartOfNATSLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	r := start(t, nats, nats.URL(), nil, nil)
	const batches, size = 60, 25
	all := firings(0, batches*size, "x")
	halfway := make(chan struct{})
	published := make(chan struct{})
	go func() {
		defer close(published)
		for i := range batches {
			if i == batches/3 {
				close(halfway)
			}
			if err := r.Wait(t.Context(), ""); err != nil {
				t.Errorf("Wait: %v", err)
			}
			r.publish(t, all[i*size:(i+1)*size]...)
		}
	}()
	<-halfway
	nats.Restart()
	<-published
	r.settler.expect(t, len(all), 0)
	checkStream(t, testenv.Collect(t, r.js, "TIMERS"), all)
	r.healthy(t, patience, "")
}

func TestFiringsWaitForNATS(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	r := start(t, nats, nats.URL(), nil, nil)
	r.healthy(t, patience, "")
	nats.Stop()
	r.healthy(t, 5*time.Second, "NATS has been disconnected")
	r.blocked(t)
	all := firings(0, 10, "x")
	r.publish(t, all...)
	waited := make(chan error, 1)
	go func() { waited <- r.Wait(t.Context(), "") }()
	nats.Start()
	if err := <-waited; err != nil {
		t.Errorf("Wait: %v", err)
	}
	r.healthy(t, 10*time.Second, "")
	r.settler.expect(t, 10, 0)
	checkStream(t, testenv.Collect(t, r.js, "TIMERS"), all)
}

func TestLeasesRunOutWhileNATSIsAway(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	r := start(t, nats, nats.URL(), nil, nil)
	nats.Stop()
	r.healthy(t, patience, "NATS has been disconnected")
	// A busy machine may take longer than the lease of the first firings, and never try them.
	n := 0
	for lease := 300 * time.Millisecond; r.metrics.counts().failed[notify.FailureDisconnected] == 0 &&
		lease < patience; lease *= 2 {
		all := firings(n, 10, "x")
		for i := range all {
			all[i].Lease = lease
		}
		r.publish(t, all...)
		n += len(all)
		r.settler.expect(t, 0, n)
	}
	nats.Start()
	r.healthy(t, patience, "")
	collector := testenv.Collect(t, r.js, "TIMERS")
	collector.Stays(0, 200*time.Millisecond)
	if c := r.metrics.counts(); r.InFlight() != 0 || c.released != n || c.failed[notify.FailureDisconnected] == 0 {
		t.Errorf("%d in flight, counted %+v", r.InFlight(), c)
	}
}

// ofDelay runs a test that needs a machine quicker than a delay, with longer and longer delays until it succeeds.
func ofDelay(t *testing.T, first time.Duration, try func(time.Duration) bool) {
	t.Helper()
	delay := first
	for !try(delay) {
		if delay *= 2; delay > patience/2 {
			t.Fatal("the machine is slower than any delay")
		}
	}
}

func TestLostAcknowledgementsDoubleNothing(t *testing.T) {
	t.Parallel()
	ofDelay(t, 500*time.Millisecond, func(delay time.Duration) bool { return loseAcknowledgements(t, delay) })
}

// loseAcknowledgements holds acknowledgements back for delay, and breaks the connection meanwhile. It reports whether
// none came before.
func loseAcknowledgements(t *testing.T, delay time.Duration) bool {
	t.Helper()
	nats := testenv.NATS(t)
	proxy := testenv.NewProxy(t, nats.Addr())
	r := start(t, nats, "nats://"+proxy.Addr(), nil, nil)
	collector := testenv.Collect(t, r.js, "TIMERS")
	r.healthy(t, patience, "")
	// The events reach the stream, but the connection breaks before the acknowledgements come through the proxy.
	proxy.Delay(delay)
	all := firings(0, 100, "x")
	r.publish(t, all...)
	collector.Wait(100, patience)
	proxy.Drop()
	proxy.Heal()
	r.settler.expect(t, 100, 0)
	checkStream(t, collector, all)
	collector.Stays(100, 100*time.Millisecond)
	r.stop(t)
	c := r.metrics.counts()
	if c.fired != 100 || c.failed[notify.FailureDisconnected] < c.duplicates {
		t.Errorf("counted %+v, want 100 duplicates and as many failures", c)
	}
	return c.duplicates == 100
}

func TestLateAcknowledgementCounts(t *testing.T) {
	t.Parallel()
	ofDelay(t, 200*time.Millisecond, func(delay time.Duration) bool { return delayAcknowledgements(t, delay) })
}

// delayAcknowledgements delays acknowledgements until nobody waits for them, and reports whether it succeeded.
func delayAcknowledgements(t *testing.T, delay time.Duration) bool {
	t.Helper()
	nats := testenv.NATS(t)
	proxy := testenv.NewProxy(t, nats.Addr())
	r := start(t, nats, "nats://"+proxy.Addr(), nil, func(p *notify.Publisher) { p.AckWait = delay / 2 })
	collector := testenv.Collect(t, r.js, "TIMERS")
	proxy.Delay(delay)
	all := firings(0, 20, "x")
	r.publish(t, all...)
	r.settler.expect(t, 20, 0)
	proxy.Heal()
	checkStream(t, collector, all)
	r.stop(t)
	c := r.metrics.counts()
	if c.fired != 20 {
		t.Errorf("counted %+v", c)
	}
	return c.failed[notify.FailureTimeout] >= 20
}

func TestFlakyNetworkLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	proxy := testenv.NewProxy(t, nats.Addr())
	r := start(t, nats, "nats://"+proxy.Addr(), nil, nil)
	collector := testenv.Collect(t, r.js, "TIMERS")
	const drops, between = 8, 250
	all := firings(0, (drops+2)*between, "x")
	published := make(chan struct{})
	go func() {
		defer close(published)
		for batch := range slices.Chunk(all, 100) {
			r.publish(t, batch...)
		}
	}()
	for i := range drops {
		collector.WaitFunc(patience, func(seen []testenv.Message) error {
			if len(seen) < (i+1)*between {
				return errors.New("too few messages")
			}
			return nil
		})
		proxy.Drop()
	}
	<-published
	r.settler.expect(t, len(all), 0)
	checkStream(t, collector, all)
}

func TestTooLargeEventFiresWithoutPayload(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]struct {
		server func(*server.Options)
		stream int32
	}{
		"max_payload of the server":  {server: func(o *server.Options) { o.MaxPayload = 20_000 }},
		"max_msg_size of the stream": {server: func(*server.Options) {}, stream: 20_000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nats := testenv.NATS(t, limit.server)
			config := jetstream.StreamConfig{Name: "TIMERS", Subjects: []string{"timers.fired.>"},
				MaxMsgSize: limit.stream}
			if _, err := nats.JetStream().CreateStream(t.Context(), config); err != nil {
				t.Fatal(err)
			}
			r := start(t, nats, nats.URL(), nil, nil)
			collector := testenv.Collect(t, r.js, "TIMERS")
			all := slices.Concat(firings(0, 3, strings.Repeat("x", 20_000)), firings(3, 3, strings.Repeat("x", 18_000)),
				firings(6, 1, strings.Repeat("\xff", 18_000)))
			r.publish(t, all...)
			events := checkStream(t, collector, all)
			for i, f := range all {
				e := events[f.Key.String()]
				whole := i >= 3 && i < 6
				if whole && !bytes.Equal(e.Data, f.Payload) || !whole &&
					(e.Data != nil || e.Status != event.StatusTooLarge) {
					t.Errorf("%s of %d bytes fired with %d bytes and status %q", f.Key, len(f.Payload), len(e.Data),
						e.Status)
				}
			}
			r.settler.expect(t, 7, 0)
			if n := r.metrics.counts().failed[notify.FailureTooLarge]; n != 4 {
				t.Errorf("%d failures for size, want 4", n)
			}
		})
	}
}

func TestStrangersRepliesAreIgnored(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	r := start(t, nats, nats.URL(), nil, nil)
	stranger := nats.Conn()
	for _, answer := range []string{"ok", "{}", `{"stream":""}`, "", `{"stream":1,"seq":2}`, `null`} {
		_, err := stranger.Subscribe("timers.fired.>", func(m *natsgo.Msg) {
			if m.Reply == "" {
				return // in a batch only the last message asks for an answer
			}
			if err := m.Respond([]byte(answer)); err != nil {
				t.Errorf("responding: %v", err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := stranger.Flush(); err != nil {
		t.Fatal(err)
	}
	all := firings(0, 50, "x")
	r.publish(t, all...)
	r.settler.expect(t, 50, 0)
	checkStream(t, testenv.Collect(t, r.js, "TIMERS"), all)
	if c := r.metrics.counts(); len(c.failed) > 0 {
		t.Errorf("counted failures %v", c.failed)
	}
}

func TestUserWithoutTheRightToPublish(t *testing.T) {
	t.Parallel()
	allowed := &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"timers.fired.>"}}}
	nats := testenv.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "admin", Password: "a"},
			{Username: "timerd", Password: "t", Permissions: allowed}}
		o.NoAuthUser = "admin"
	})
	r := start(t, nats, "nats://timerd:t@"+nats.Addr(), nil,
		func(p *notify.Publisher) { p.AckWait = 100 * time.Millisecond })
	r.publish(t, firings(0, 1, "x")...)
	r.healthy(t, 5*time.Second, "to fix it: let the NATS user publish to timers.fired.>")
	r.settler.expect(t, 0, 1)
}

func TestSilentNetworkIsNoticed(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	proxy := testenv.NewProxy(t, nats.Addr())
	r := start(t, nats, "nats://"+proxy.Addr(), nil, nil)
	r.healthy(t, patience, "")
	proxy.Blackhole()
	// More than the network's buffers hold, so that writing blocks.
	all := firings(0, 2000, strings.Repeat("x", 10_000))
	published := make(chan struct{})
	go func() {
		defer close(published)
		r.publish(t, all...)
	}()
	testenv.Promptly(t, 5*time.Second, func() bool { return r.Healthy() != nil }, "noticing")
	// An answer that had come before may be read only now.
	testenv.Eventually(t, patience, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		return errors.Is(r.Wait(ctx, ""), context.DeadlineExceeded)
	}, "Wait to wait")
	proxy.Heal()
	r.healthy(t, 10*time.Second, "")
	<-published
	r.settler.expect(t, 2000, 0)
	checkStream(t, testenv.Collect(t, r.js, "TIMERS"), all)
}
