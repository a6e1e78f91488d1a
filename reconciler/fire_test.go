package reconciler

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// openPublisher is a Publisher that takes everything.
type openPublisher struct{}

func (openPublisher) Wait(context.Context, string) error               { return nil }
func (openPublisher) Publish(context.Context, []schedule.Firing) error { return nil }

// firing returns a firer and its Claimer.
func (b *bench) firing() (*claims, *firer) {
	c := &claims{bench: b, next: schedule.Nothing}
	return c, &firer{
		claimer: c, publisher: openPublisher{}, agenda: newAgenda(b), health: newHealth(), busy: new(atomic.Bool),
		log: b.logger(), metrics: noMetrics{},
	}
}

// The firer claims at the first known due time, a standby later, and the reply gives the next due time.
func TestFirerSleepsUntilTheFirstIsDue(t *testing.T) {
	t.Parallel()
	loop(t, func(t *testing.T, b *bench, start func(func(context.Context)) func()) {
		c, f := b.firing()
		defer start(f.run)()
		f.agenda.wake(keys.Single, b.in(10*time.Second))
		f.agenda.wake(keys.Single, schedule.Nothing)
		b.saw(t, 5*time.Second)
		b.change(func() { c.next = b.in(4 * time.Second) })
		f.agenda.wake(keys.Single, b.in(2*time.Second))
		b.saw(t, 3*time.Second, `7s claim`)
		b.saw(t, 5*time.Second, `9s claim`)
		f.agenda.setRank(2, false)
		f.agenda.wake(keys.Single, b.in(time.Second))
		b.saw(t, 2*time.Second, `14.05s claim`)
		f.agenda.wake(keys.Single, schedule.AtOnce)
		b.saw(t, time.Second, `15s claim`)
		f.agenda.wake(keys.Single, b.in(time.Second))
		f.agenda.setRank(1, false)
		f.agenda.setRank(0, false)
		b.saw(t, 2*time.Second, `17s claim`)
	})
}

// Under load the next claim comes a moment after the last one on a single server, and at common moments on the masters
// of a cluster.
func TestFirerCoalesces(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]string{
		"":  {`1.5ms claim`, `2.5ms claim`, `4.501ms claim`, `13ms claim`},
		"a": {`1.5ms claim`, `4ms claim`, `8ms claim`, `13ms claim`},
	} {
		loop(t, func(t *testing.T, b *bench, start func(func(context.Context)) func()) {
			c, f := b.firing()
			f.name, c.brings = name, []schedule.Firing{{}}
			defer start(f.run)()
			b.pass(1500 * time.Microsecond)
			var got []string
			for _, pass := range []time.Duration{time.Microsecond, 3 * time.Millisecond, 8499 * time.Microsecond,
				6500 * time.Microsecond} {
				f.agenda.wake(keys.Single, schedule.AtOnce)
				b.pass(pass)
				got = append(got, b.happened()...)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%q: claims at %q, want %q", name, got, want)
			}
		})
	}
}

// A failed claim is repeated with growing pauses, and counts as a failure after some seconds; a claim from a moving
// partition is repeated soon, and proves nothing.
func TestFirerTriesAgain(t *testing.T) {
	t.Parallel()
	loop(t, func(t *testing.T, b *bench, start func(func(context.Context)) func()) {
		c, f := b.firing()
		c.err = errors.New("away")
		defer start(f.run)()
		f.agenda.wake(keys.Single, schedule.AtOnce)
		time.Sleep(time.Minute)
		// 50 ms, 100 ms and so on up to 2 s, each up to a fifth shorter.
		if tries := b.happened(); len(tries) < 34 || len(tries) > 44 {
			t.Errorf("%d tries in a minute: %q", len(tries), tries)
		}
		if err := f.health.err(b); err == nil ||
			!strings.Contains(err.Error(), "claiming due timers has been failing for 1m0s: away") {
			t.Errorf("health: %v", err)
		}
		if n := strings.Count(b.log.String(), "cannot fire timers"); n != 1 {
			t.Errorf("%d lines:\n%s", n, &b.log)
		}
		b.change(func() { c.err = nil })
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if err := f.health.err(b); err != nil {
			t.Errorf("after a success: %v", err)
		}
		b.happened()
		b.saw(t, time.Minute)

		b.change(func() { c.err = errors.New("TRYAGAIN the slot is moving") })
		f.agenda.wake(keys.Single, schedule.AtOnce)
		time.Sleep(950 * time.Millisecond)
		if claims := b.happened(); len(claims) != 10 {
			t.Errorf("%d claims from a partition that is moving, want one each %s: %q", len(claims), movingPause,
				claims)
		}
		if err := f.health.err(b); err != nil {
			t.Errorf("while it is moving: %v", err)
		}
	})
}
