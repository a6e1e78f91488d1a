package core_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/notify"
	"github.com/timerd-io/timerd/reconciler"
	"github.com/timerd-io/timerd/schedule"
	"github.com/timerd-io/timerd/test/system"
)

var errDead = errors.New("dead")

// deathbed lets a pipeline die at one step: from then on nothing that it does
// has an effect.
type deathbed struct {
	*notify.Publisher
	*schedule.Schedule
	step string
	nc   *nats.Conn

	once sync.Once
	dead chan struct{}
}

func (d *deathbed) die() error {
	d.once.Do(func() {
		d.nc.Close()
		close(d.dead)
	})
	return errDead
}

func (d *deathbed) isDead() bool {
	select {
	case <-d.dead:
		return true
	default:
		return false
	}
}

func (d *deathbed) Publish(ctx context.Context, firings []schedule.Firing) error {
	if d.isDead() || d.step == "claimed" {
		return d.die()
	}
	err := d.Publisher.Publish(ctx, firings)
	if d.step == "published" {
		return d.die()
	}
	return err
}

func (d *deathbed) Settle(ctx context.Context, outcomes []schedule.Outcome) error {
	if d.isDead() || d.step == "acknowledged" {
		return d.die()
	}
	err := d.Schedule.Settle(ctx, outcomes)
	if d.step == "settled" {
		return d.die()
	}
	return err
}

func (d *deathbed) Release(ctx context.Context, outcomes []schedule.Outcome) error {
	if d.isDead() {
		return errDead
	}
	return d.Schedule.Release(ctx, outcomes)
}

// deathSteps are the steps at which a deathbed dies.
func deathSteps() []string { return []string{"claimed", "published", "acknowledged", "settled"} }

// doom starts a pipeline that dies at a step, after a timerd has left the library and the streams. end waits for its
// death.
func doom(s *system.System, step string) (end func()) {
	s.T.Helper()
	s.Start().Stop()
	sched := schedule.New(s.RDB, schedule.DefaultMaxPayload)
	nc := s.NATS.Conn(connect.NATSOptions()...)
	js, err := jetstream.New(nc)
	if err != nil {
		s.T.Fatal(err)
	}
	d := &deathbed{Schedule: sched, step: step, nc: nc, dead: make(chan struct{})}
	d.Publisher = notify.NewPublisher(nc, js, d)
	d.DrainTimeout = 100 * time.Millisecond // the dead settle nothing
	found, err := sched.Nodes(s.T.Context())
	if err != nil {
		s.T.Fatal(err)
	}
	rec := reconciler.New(found[0], d, keys.Namespaces{{}}, "doomed")
	rec.Lease, rec.SweepInterval = 2*time.Second, 10*time.Millisecond

	ctx, cancel := context.WithCancel(s.T.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = d.Run(ctx) })
	wg.Go(func() { rec.Run(ctx) })
	stop := func() {
		cancel()
		wg.Wait()
	}
	s.T.Cleanup(stop)
	return func() {
		testenv.Eventually(s.T, system.Patience, d.isDead, "the death")
		stop()
	}
}

// TestDeathAtEachStep kills a timerd between claim and settle, at every step in turn, and has another one go on, which
// logs its takeover.
func TestDeathAtEachStep(t *testing.T) {
	t.Parallel()
	for _, step := range deathSteps() {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			s := system.New(t)
			end := doom(s, step)
			c := s.Collect()
			want := setAll(s, "a:b:c:", 200, func(i int) int { return 1 + i/4 })
			for i := range 20 {
				key := fmt.Sprintf("a:b:repeated:%d", i)
				s.Repeats(key, "p", 100, "TIMES", 3, "CATCHUP", system.Hour)
				want = append(want, key+"=p", key+"=p", key+"=p")
			}
			end()
			next := s.Start()
			s.Expect(c, want...)
			s.Settled()
			if step == "claimed" {
				next.Log.Wait(t, system.Patience, "took over firings that were claimed before")
			}
		})
	}
}
