package notify_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/notify"
	"github.com/timerd-io/timerd/schedule"
)

// gathering starts a publisher of batches, and returns once it knows that the stream takes them. It also returns the
// only firing published by then.
func gathering(t *testing.T, nats natsServer, url string, configure func(*notify.Publisher)) (*running,
	schedule.Firing) {
	t.Helper()
	r := start(t, nats, url, nil, func(p *notify.Publisher) {
		p.TakeForSlow()
		if configure != nil {
			configure(p)
		}
	})
	if err := r.Wait(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	r.healthy(t, patience, "")
	testenv.Eventually(t, patience, r.TakesBatches, "the stream to be known")
	first := firings(1_000_000, 1, "x")
	r.publish(t, first...)
	r.settler.expect(t, 1, 0)
	return r, first[0]
}

// batched returns the number of the stream's n messages that came in batches, and the number of these batches.
func batched(t *testing.T, js jetstream.JetStream, n int) (messages, batches int) {
	t.Helper()
	seen := map[string]bool{}
	for _, m := range testenv.Collect(t, js, "TIMERS").Wait(n, patience) {
		if id := m.Header.Get("Nats-Batch-Id"); id != "" {
			messages++
			seen[id] = true
		}
	}
	return messages, len(seen)
}

// Events published in batches are stored and settled once each, under the same ids.
func TestBatches(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	r, first := gathering(t, nats, nats.URL(), nil)
	all := firings(0, 1999, "x")
	for part := range slices.Chunk(all, 128) {
		r.publish(t, part...)
	}
	r.settler.expect(t, 2000, 0)
	checkStream(t, testenv.Collect(t, r.js, "TIMERS"), append(all, first))
	if n, in := batched(t, r.js, 2000); n < 1000 || in > n/10 {
		t.Errorf("%d messages in %d batches", n, in)
	}
	r.stop(t)
	if c := r.metrics.counts(); c.fired != 2000 || c.settled != 2000 || c.duplicates != 0 || len(c.failed) > 0 {
		t.Errorf("counted %+v", c)
	}
}

// A stream that takes no batches gets events one by one, even if it has only just stopped taking them.
func TestStreamWithoutBatches(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	allow := func(js jetstream.JetStream, allowed bool) {
		t.Helper()
		config := jetstream.StreamConfig{Name: "TIMERS", Subjects: []string{"timers.fired.>"},
			AllowAtomicPublish: allowed}
		if _, err := js.CreateOrUpdateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	}
	allow(nats.JetStream(), false)
	r := start(t, nats, nats.URL(), nil, (*notify.Publisher).TakeForSlow)
	all := firings(0, 500, "x")
	r.publish(t, all...)
	r.settler.expect(t, 500, 0)
	if n, _ := batched(t, r.js, 500); n != 0 {
		t.Errorf("%d messages are of a batch", n)
	}
	allow(r.js, true)
	testenv.Eventually(t, patience, r.TakesBatches, "the stream to be known")
	allow(r.js, false)
	more := firings(500, 500, "x")
	r.publish(t, more...)
	r.settler.expect(t, 1000, 0)
	checkStream(t, testenv.Collect(t, r.js, "TIMERS"), slices.Concat(all, more))
}

// A batch with an event that is stored already, or too large, is refused as a whole. Its events are then published
// alone.
func TestRefusedBatches(t *testing.T) {
	t.Parallel()
	const large = 20_000
	tooLarge := func(_ *testing.T, _ *running, f *schedule.Firing) { f.Payload = []byte(strings.Repeat("x", large)) }
	for name, c := range map[string]struct {
		payload int32 // largest that the server takes
		message int32 // largest that the stream takes
		spoil   func(*testing.T, *running, *schedule.Firing)
	}{
		"stored already": {payload: 1 << 20, spoil: func(t *testing.T, r *running, f *schedule.Firing) {
			t.Helper()
			m := natsgo.NewMsg("timers.fired.a.b.c")
			m.Header.Set(natsgo.MsgIdHdr, keys.EventID(f.Key.String(), int64(f.Due), 1))
			if _, err := r.js.PublishMsg(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}},
		"too large for the stream": {payload: 1 << 20, message: large, spoil: tooLarge},
		"too large for the server": {payload: large, spoil: tooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nats := testenv.NATS(t, func(o *server.Options) { o.MaxPayload = c.payload })
			config := jetstream.StreamConfig{Name: "TIMERS", Subjects: []string{"timers.fired.>"},
				MaxMsgSize: c.message, AllowAtomicPublish: true}
			if _, err := nats.JetStream().CreateStream(t.Context(), config); err != nil {
				t.Fatal(err)
			}
			r, _ := gathering(t, nats, nats.URL(), nil)
			all := firings(0, 500, "x")
			c.spoil(t, r, &all[250])
			r.publish(t, all...)
			r.settler.expect(t, 501, 0)
			collector := testenv.Collect(t, r.js, "TIMERS")
			collector.Wait(501, patience)
			if dup := collector.DuplicateIDs(); len(dup) > 0 {
				t.Errorf("stored twice: %v", dup)
			}
			failed := r.metrics.counts().failed
			if n := failed[notify.FailureTooLarge]; (n == 1) != (len(all[250].Payload) == large) || len(failed) != n {
				t.Errorf("failures: %v", failed)
			}
		})
	}
}

// A subject denied meanwhile spoils a batch, but the events on other subjects are published.
func TestDeniedSubjectInABatch(t *testing.T) {
	t.Parallel()
	const subject = "timers.fired.app1.trans.denied"
	nats := testenv.NATS(t, denying(subject))
	r, _ := gathering(t, nats, asTimerd(nats), nil)
	r.Trust(subject)
	all := firings(0, 500, "x")
	for i := range all {
		if i%100 == 50 {
			all[i].Key.Type = "denied"
		}
	}
	r.publish(t, all...)
	r.settler.expect(t, 496, 5)
	collector := testenv.Collect(t, r.js, "TIMERS")
	collector.Wait(496, patience)
	if dup := collector.DuplicateIDs(); len(dup) > 0 {
		t.Errorf("stored twice: %v", dup)
	}
}

// Repeated breaks of the connection among batches and a restart of the server lose and double nothing.
func TestBatchesOnAFlakyNetwork(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	proxy := testenv.NewProxy(t, nats.Addr())
	r, first := gathering(t, nats, "nats://"+proxy.Addr(), nil)
	const rounds, size = 8, 400
	all := []schedule.Firing{first}
	for i := range rounds {
		r.TakeForSlow() // again, since the connection is another one
		part := firings(i*size, size, strings.Repeat("x", 1000))
		all = append(all, part...)
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.publish(t, part...)
		}()
		if i == rounds/2 {
			nats.Restart()
		} else {
			proxy.Drop()
		}
		<-done
	}
	r.settler.expect(t, len(all), 0)
	checkStream(t, testenv.Collect(t, r.js, "TIMERS"), all)
}

// The events of a batch without an answer in time are published again, each alone. JetStream has the first ones, and
// drops the others.
func TestBatchWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	proxy := testenv.NewProxy(t, nats.Addr())
	r, first := gathering(t, nats, "nats://"+proxy.Addr(), func(p *notify.Publisher) { p.AckWait = time.Second })
	all := firings(0, 300, "x")
	proxy.Delay(1500 * time.Millisecond)
	r.publish(t, all...)
	collector := testenv.Collect(t, r.js, "TIMERS")
	collector.Wait(301, patience)
	r.settler.expect(t, 301, 0)
	checkStream(t, collector, append(all, first))
}

// Whenever Run ends, each firing is settled or given back, once.
func TestRunEndsAmongBatches(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	for round := range 10 {
		r, _ := gathering(t, nats, nats.URL(), nil)
		all := firings(round*1000, 400, "x")
		r.publish(t, all...)
		if round%2 == 0 {
			testenv.Eventually(t, patience, func() bool { return r.metrics.counts().fired > round*10 }, "some firings")
		}
		r.stop(t)
		settled, released, _ := r.settler.counts()
		if settled+released != len(all)+1 || r.InFlight() != 0 {
			t.Fatalf("round %d: %d settled and %d given back of %d, %d in flight", round, settled, released, len(all)+1,
				r.InFlight())
		}
	}
}
