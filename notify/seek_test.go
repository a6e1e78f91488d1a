package notify_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/notify"
	"github.com/timerd-io/timerd/schedule"
)

// shortWindow makes a publisher content with a stream that forgets ids almost at once.
func shortWindow(p *notify.Publisher) { p.Streams.MinDuplicates = time.Millisecond }

// forgetIDs shortens the stream's duplicate window and returns once the ids of stored events are forgotten.
func forgetIDs(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	stream, err := js.Stream(t.Context(), "TIMERS")
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	// Twice, because the server may look through the ids before it changes the window.
	for _, window := range []time.Duration{101 * time.Millisecond, 100 * time.Millisecond} {
		config.Duplicates = window
		if _, err := js.UpdateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	}
	// Ids are forgotten in their order.
	testenv.Eventually(t, patience, func() error {
		ack, err := js.Publish(t.Context(), "timers.fired.other.probe.x", nil, jetstream.WithMsgID("probe"))
		if err == nil && (ack.Duplicate || ack.Sequence <= stream.CachedInfo().State.LastSeq+1) {
			err = errors.New("the id of the probe is not forgotten")
		}
		return err
	}, "forgotten ids")
}

func TestStoredFiringsAreFoundBeyondTheWindow(t *testing.T) {
	t.Parallel()
	p, nats := testenv.NewSchedule(t), testenv.NATS(t)
	crashing := start(t, nats, nats.URL(), nil, func(p *notify.Publisher) {
		shortWindow(p)
		p.DrainTimeout = 100 * time.Millisecond
	})
	crashing.settler.failWith(errors.New("crashed before it could settle"))
	collector := testenv.Collect(t, crashing.js, "TIMERS", "timers.fired.app1.>")
	p.SetDue(50)
	all := p.Claim(50, lease)
	crashing.publish(t, all[:40]...) // it dies before it publishes the others
	collector.Wait(40, patience)
	crashing.stop(t)
	endLeases(t, p, all)
	forgetIDs(t, crashing.js)

	r := start(t, nats, nats.URL(), p, shortWindow)
	r.healthy(t, patience, "")
	r.publish(t, p.Claim(50, lease)...)
	p.WaitEmpty()
	for i := 40; i < len(all); i++ {
		all[i].Trigger = schedule.TriggerReclaim
	}
	checkStream(t, collector, all)
	collector.Stays(50, 50*time.Millisecond)
	r.stop(t)
	if c := r.metrics.counts(); c.duplicates != 40 || c.fired != 50 || c.early != 0 {
		t.Errorf("counted %+v, want 40 of 50 found", c)
	}
}

func TestGivenBackFiringsAreFoundBeyondTheWindow(t *testing.T) {
	t.Parallel()
	p, nats := testenv.NewSchedule(t), testenv.NATS(t)
	proxy := testenv.NewProxy(t, nats.Addr())
	cut := start(t, nats, "nats://"+proxy.Addr(), p, shortWindow)
	cut.healthy(t, patience, "")
	collector := testenv.Collect(t, cut.js, "TIMERS", "timers.fired.app1.>")
	p.SetDue(20)
	all := p.Claim(20, 4*time.Second)
	// The events reach the stream, but no acknowledgement comes back while the lease lasts.
	proxy.Delay(time.Second)
	cut.TakeForKnown()
	cut.publish(t, all...)
	collector.Wait(20, patience)
	proxy.Cut()
	testenv.Eventually(t, patience, func() bool { return cut.metrics.counts().released == 20 }, "firings given back")
	cut.stop(t)
	forgetIDs(t, cut.js)

	r := start(t, nats, nats.URL(), p, shortWindow)
	r.healthy(t, patience, "")
	again := p.Claim(20, lease)
	if slices.ContainsFunc(again, func(f schedule.Firing) bool { return f.Trigger == schedule.TriggerReclaim }) {
		t.Error("some were not given back")
	}
	r.publish(t, again...)
	p.WaitEmpty()
	checkStream(t, collector, all)
	collector.Stays(20, 50*time.Millisecond)
}

// A firing is published if the stream cannot be searched.
func TestFiringsThatCannotBeLookedForArePublished(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "u", Password: "p", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Deny: []string{"$JS.API.CONSUMER.CREATE.TIMERS.>"}},
		}}}
		o.NoAuthUser = "u"
	})
	r := start(t, nats, nats.URL(), nil, nil)
	r.healthy(t, patience, "")
	all := firings(0, 10, "x")
	for i := range all {
		all[i].MayBeStored = true
		all[i].Due -= schedule.Millis(time.Hour.Milliseconds())
	}
	r.publish(t, all...)
	r.settler.expect(t, 10, 0)
	if c := r.metrics.counts(); c.fired != 10 || c.duplicates != 0 {
		t.Errorf("counted %+v", c)
	}
}
