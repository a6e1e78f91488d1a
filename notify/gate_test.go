package notify

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// A caller waits at the gate until it opens or stops, and asks again after each announcement.
func TestGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		var ready atomic.Bool
		var asked atomic.Int64
		await := func(ctx context.Context) <-chan error {
			ended := make(chan error, 1)
			go func() {
				ended <- g.await(ctx, func() bool {
					asked.Add(1)
					return ready.Load()
				})
			}()
			synctest.Wait()
			return ended
		}
		ended := func(c <-chan error) (err error, ok bool) {
			synctest.Wait()
			select {
			case err = <-c:
				return err, true
			default:
				return nil, false
			}
		}

		first := await(t.Context())
		if asked.Load() != 0 {
			t.Error("it asks before the gate is open")
		}
		cut, cancel := context.WithCancel(t.Context())
		cancel()
		if err, ok := ended(await(cut)); !ok || !errors.Is(err, context.Canceled) {
			t.Errorf("with a context that has ended: %v, %v", err, ok)
		}
		g.open()
		if _, ok := ended(first); ok || asked.Load() == 0 {
			t.Error("it does not wait, or does not ask, once the gate is open")
		}
		before := asked.Load()
		g.announce()
		if _, ok := ended(first); ok || asked.Load() == before {
			t.Error("an announcement has it not ask again")
		}
		ready.Store(true)
		g.announce()
		if err, ok := ended(first); err != nil || !ok {
			t.Errorf("there is room: %v, %v", err, ok)
		}
		ready.Store(false)
		second := await(t.Context())
		g.stop()
		if err, ok := ended(second); !ok || !errors.Is(err, ErrStopped) {
			t.Errorf("when it stops: %v, %v", err, ok)
		}
		ready.Store(true)
		if err, ok := ended(await(t.Context())); !ok || !errors.Is(err, ErrStopped) || !g.isStopped() {
			t.Errorf("after it has stopped: %v, %v", err, ok)
		}
	})
}
