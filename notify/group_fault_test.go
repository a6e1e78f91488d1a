package notify_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/notify"
	"github.com/timerd-io/timerd/schedule"
)

// A batch beyond a stream's limit is refused as a whole. Then the events that fit are stored, and the others once there
// is room.
func TestFullStreamAmongBatches(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	config := jetstream.StreamConfig{
		Name: "TIMERS", Subjects: []string{"timers.fired.>"}, Discard: jetstream.DiscardNew, MaxMsgs: 301,
		AllowAtomicPublish: true,
	}
	if _, err := nats.JetStream().CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	r, first := gathering(t, nats, nats.URL(), nil)
	all := append(firings(0, 500, "x"), first)
	r.publish(t, all[:500]...)
	r.healthy(t, patience, "it is full: 301 messages of at most 301")
	r.settler.expect(t, 301, 0)
	config.MaxMsgs = 1000
	if _, err := r.js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	r.settler.expect(t, 501, 0)
	checkStream(t, testenv.Collect(t, r.js, "TIMERS"), all)
	if failed := r.metrics.counts().failed; failed[notify.FailureFull] != len(failed) && len(failed) != 1 {
		t.Errorf("failures: %v", failed)
	}
}

// A server that takes small batches gets small ones, and a server without batches gets lone events. No event is lost
// with a batch that the server gave up.
func TestLimitsOfBatches(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limits server.JSLimitOpts
		judge  func(batched int) bool
	}{
		"100 messages": {server.JSLimitOpts{MaxBatchSize: 100}, func(n int) bool { return n > 0 }},
		// a batch, if any, has one event
		"1 message":       {server.JSLimitOpts{MaxBatchSize: 1}, func(int) bool { return true }},
		"hardly any time": {server.JSLimitOpts{MaxBatchTimeout: time.Nanosecond}, func(int) bool { return true }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nats := testenv.NATS(t, func(o *server.Options) { o.JetStreamLimits = c.limits })
			r, first := gathering(t, nats, nats.URL(), nil)
			all := firings(0, 2000, "x")
			for part := range slices.Chunk(all, 500) {
				r.publish(t, part...)
			}
			r.settler.expect(t, 2001, 0)
			// a slow server refuses all batches sent before its first refusal arrived
			more := firings(2000, 500, "x")
			r.publish(t, more...)
			r.settler.expect(t, 2501, 0)
			checkStream(t, testenv.Collect(t, r.js, "TIMERS"), slices.Concat(all, more, []schedule.Firing{first}))
			if n, _ := batched(t, r.js, 2501); !c.judge(n) {
				t.Errorf("%d messages are of a batch", n)
			}
			if failed := r.metrics.counts().failed; len(failed) > 0 {
				t.Errorf("failures: %v", failed)
			}
		})
	}
}

// While others hold all batches that the server allows at once, events go alone; afterwards they go in batches again.
func TestTooManyBatches(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t, func(o *server.Options) {
		// The other batch is open for as long as the test needs, also on a busy machine.
		o.JetStreamLimits = server.JSLimitOpts{MaxBatchInflightPerStream: 1, MaxBatchTimeout: time.Hour}
	})
	r, first := gathering(t, nats, nats.URL(), nil)
	other := nats.Conn()
	send := func(seq int, header natsgo.Header) {
		t.Helper()
		m := natsgo.NewMsg(fmt.Sprintf("timers.fired.a.b.c%d", seq))
		m.Header = header
		header.Set("Nats-Batch-Id", "other")
		header.Set("Nats-Batch-Sequence", fmt.Sprint(seq))
		if answer, err := other.RequestMsg(m, patience); err != nil || strings.Contains(string(answer.Data), "error") {
			t.Fatalf("%v, %v", answer, err)
		}
	}
	send(1, natsgo.Header{})
	all := firings(0, 1000, "x")
	r.publish(t, all...)
	r.settler.expect(t, 1001, 0)
	collector := testenv.Collect(t, r.js, "TIMERS", "timers.fired.app1.>")
	checkStream(t, collector, append(all, first))
	if n, _ := batched(t, r.js, 1001); n != 0 {
		t.Errorf("%d messages are of a batch", n)
	}
	send(2, natsgo.Header{"Nats-Batch-Commit": {"1"}})
	stored := 1001
	testenv.Eventually(t, patience, func() bool {
		r.publish(t, firings(stored, 100, "x")...)
		stored += 100
		for _, m := range collector.Wait(stored, patience)[1001:] {
			if m.Header.Get("Nats-Batch-Id") != "" {
				return true
			}
		}
		return false
	}, "batches again")
}

// unsettled returns the firings that are not settled, as a second timerd claims them.
func (r *running) unsettled(all []schedule.Firing) (left []schedule.Firing) {
	r.settler.mu.Lock()
	defer r.settler.mu.Unlock()
	for _, f := range all {
		if r.settler.settled[f.Ref] == 0 {
			f.MayBeStored, f.Trigger = true, schedule.TriggerReclaim
			left = append(left, f)
		}
	}
	return left
}

// A timerd dies among whole, half and unanswered batches. Another timerd publishes the rest, and each event is stored
// once.
func TestPublisherDiesAmongBatches(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	var collector *testenv.Collector
	n := 0 // events so far
	for round := range 4 {
		proxy := testenv.NewProxy(t, nats.Addr())
		r := start(t, nats, "nats://"+proxy.Addr(), nil, func(p *notify.Publisher) {
			p.DrainTimeout = 10 * time.Millisecond
			p.TakeForSlow()
		})
		testenv.Eventually(t, patience, r.TakesBatches, "the stream to be known")
		if collector == nil {
			collector = testenv.Collect(t, r.js, "TIMERS")
		}
		all := firings(round*1000, 600, strings.Repeat("x", 1000))
		r.publish(t, all[:100]...)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = r.Publish(t.Context(), all[100:]) // it may end before
		}()
		if round%2 == 0 {
			collector.WaitFunc(patience, func(seen []testenv.Message) error {
				if len(seen) < n+1+10*round {
					return fmt.Errorf("%d", len(seen))
				}
				return nil
			})
		}
		proxy.Cut()
		r.cancel()
		<-done
		r.stop(t)
		next, _ := gathering(t, nats, nats.URL(), nil)
		left := r.unsettled(all)
		next.publish(t, left...)
		next.settler.expect(t, len(left)+1, 0)
		next.stop(t)
		n += len(all) + 1
	}
	if dup := collector.DuplicateIDs(); len(dup) > 0 {
		t.Errorf("stored twice: %v", dup)
	}
	collector.WaitFunc(patience, func(seen []testenv.Message) error {
		if len(seen) < n {
			return fmt.Errorf("%d", len(seen))
		}
		return nil
	})
	collector.Stays(n, 0)
}

// A nats-server that syncs each message and is killed among batches loses and doubles nothing.
func TestNATSIsKilledAmongBatches(t *testing.T) {
	t.Parallel()
	killAmongBatches(t, startNATS(t, 1), 3, func(int) int { return 0 })
}

// The same holds in a cluster if the leader of the stream or another server is killed.
func TestClusterIsKilledAmongBatches(t *testing.T) {
	t.Parallel()
	nats := startNATS(t, 3)
	killAmongBatches(t, nats, 4, func(round int) int {
		if round%2 == 1 {
			return round % 3
		}
		var leader int
		testenv.Eventually(t, patience, func() error {
			stream, err := nats.JetStream().Stream(t.Context(), "TIMERS")
			if err == nil {
				_, err = fmt.Sscanf(stream.CachedInfo().Cluster.Leader, "s%d", &leader)
			}
			return err
		}, "a leader of the stream")
		return leader
	})
}

// killAmongBatches kills a server in each round, chosen by which, while firings are published.
func killAmongBatches(t *testing.T, nats *natsProcesses, rounds int, which func(round int) int) {
	t.Helper()
	r, first := gathering(t, nats, nats.url(), func(p *notify.Publisher) {
		p.AckWait = 2 * time.Second
		p.Streams.Replicas = len(nats.addrs)
	})
	collector := testenv.Collect(t, nats.JetStream(), "TIMERS")
	all := []schedule.Firing{first}
	for round := range rounds {
		testenv.Eventually(t, patience, r.TakesBatches, "the stream to take batches")
		part := firings(round*2000, 2000, "x")
		all = append(all, part...)
		server := which(round)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for some := range slices.Chunk(part, 100) {
				r.TakeForSlow() // again, since the connection may be another one
				r.publish(t, some...)
			}
		}()
		collector.WaitFunc(patience, func(seen []testenv.Message) error {
			if len(seen) < len(all)-1000 {
				return fmt.Errorf("%d", len(seen))
			}
			return nil
		})
		nats.kill(server)
		nats.start(server)
		<-done
	}
	r.settler.expect(t, len(all), 0)
	checkStream(t, collector, all)
	if n, in := batched(t, nats.JetStream(), len(all)); n < len(all)/4 {
		t.Errorf("%d messages in %d batches of %d", n, in, len(all))
	}
}

// Copies of the stream of firings have each event of a batch once.
func TestBatchesAreMirrored(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	r, first := gathering(t, nats, nats.URL(), nil)
	for _, config := range []jetstream.StreamConfig{
		{Name: "MIRROR", Mirror: &jetstream.StreamSource{Name: "TIMERS"}},
		{Name: "COPY", Sources: []*jetstream.StreamSource{{Name: "TIMERS"}}, AllowAtomicPublish: true},
	} {
		if _, err := r.js.CreateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	}
	all := append(firings(0, 1000, "x"), first)
	r.publish(t, all[:1000]...)
	r.settler.expect(t, 1001, 0)
	for _, name := range []string{"TIMERS", "MIRROR", "COPY"} {
		checkStream(t, testenv.Collect(t, r.js, name), all)
	}
}
