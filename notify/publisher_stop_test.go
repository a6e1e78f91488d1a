package notify_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/notify"
)

func TestDrainSettlesWhatIsAcknowledged(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	proxy := testenv.NewProxy(t, nats.Addr())
	r := start(t, nats, "nats://"+proxy.Addr(), nil, nil)
	collector := testenv.Collect(t, r.js, "TIMERS")
	proxy.Delay(200 * time.Millisecond)
	all := firings(0, 500, "x")
	r.publish(t, all...)
	r.stop(t)
	if settled, released, _ := r.settler.counts(); settled != 500 || released != 0 {
		t.Errorf("%d settled and %d released after the end", settled, released)
	}
	checkStream(t, collector, all)

	if err := r.Wait(t.Context(), ""); !errors.Is(err, notify.ErrStopped) {
		t.Errorf("Wait: %v, want %v", err, notify.ErrStopped)
	}
	if err := r.Healthy(); !errors.Is(err, notify.ErrStopped) {
		t.Errorf("Healthy: %v, want %v", err, notify.ErrStopped)
	}
	if err := r.Publish(t.Context(), firings(500, 3, "x")); !errors.Is(err, notify.ErrStopped) {
		t.Errorf("Publish: %v, want %v", err, notify.ErrStopped)
	}
	r.settler.expect(t, 500, 3)
}

func TestDrainGivesBackWhatCannotBePublished(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	proxy := testenv.NewProxy(t, nats.Addr())
	for name, fault := range map[string]func(){"refused": proxy.Cut, "silent": proxy.Blackhole} {
		t.Run(name, func(t *testing.T) {
			r := start(t, nats, "nats://"+proxy.Addr(), nil,
				func(p *notify.Publisher) { p.DrainTimeout = 2 * time.Second })
			r.healthy(t, patience, "")
			fault()
			r.publish(t, firings(0, 5, "x")...)
			watch := testenv.StartStopwatch()
			r.stop(t)
			watch.AtMost(t, 3*time.Second, "draining")
			r.settler.expect(t, 0, 5)
			proxy.Heal()
		})
	}
}

func TestDrainEndsWhenNothingWorks(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	r := start(t, nats, nats.URL(), nil, func(p *notify.Publisher) { p.DrainTimeout = time.Second })
	collector := testenv.Collect(t, r.js, "TIMERS")
	r.settler.failWith(errors.New("Redis is away"))
	r.publish(t, firings(0, 5, "x")...)
	collector.Wait(5, patience)
	watch := testenv.StartStopwatch()
	r.stop(t)
	watch.AtMost(t, 2*time.Second, "draining")
}

func TestPublishGivesBackWhatFindsNoRoom(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	r := start(t, nats, nats.URL(), nil, func(p *notify.Publisher) { p.Window = 4 })
	nats.Stop()
	r.healthy(t, patience, "NATS has been disconnected")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := r.Publish(ctx, firings(0, 10, "x")); !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "6 firings not published") {
		t.Errorf("Publish: %v", err)
	}
	r.settler.expect(t, 0, 6)
	nats.Start()
	r.settler.expect(t, 4, 6)
}

func TestEveryFiringIsSettledOrGivenBackWheneverRunEnds(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	for round := range 20 {
		r := start(t, nats, nats.URL(), nil, func(p *notify.Publisher) { p.Window = 64 })
		all := firings(round*1000, 400, "x")
		var publishers sync.WaitGroup
		for part := range slices.Chunk(all, 100) {
			publishers.Go(func() {
				for batch := range slices.Chunk(part, 10) {
					if err := r.Publish(t.Context(), batch); err != nil && !errors.Is(err, notify.ErrStopped) {
						t.Errorf("Publish: %v", err)
					}
				}
			})
		}
		if round%2 == 0 {
			testenv.Eventually(t, patience, func() bool { return r.metrics.counts().fired > round*10 }, "some firings")
		}
		r.stop(t)
		publishers.Wait()
		settled, released, _ := r.settler.counts()
		if settled+released != len(all) || r.InFlight() != 0 {
			t.Fatalf("round %d: %d settled and %d given back of %d, %d in flight", round, settled, released, len(all),
				r.InFlight())
		}
	}
}
