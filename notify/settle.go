package notify

import (
	"context"
	"errors"
	"time"

	"github.com/timerd-io/timerd/schedule"
)

const (
	// settleBatch is how many firings are settled in one call: large enough that
	// the call itself costs little beside them, small enough not to hold Redis.
	settleBatch = 256
	// settleGather is how long acknowledged firings wait for others to be settled
	// with. They are published, so it delays nothing.
	settleGather = 20 * time.Millisecond
	// callTimeout bounds one call to the settler.
	callTimeout = 5 * time.Second

	firstSettlePause   = 50 * time.Millisecond
	longestSettlePause = 2 * time.Second
	longestRest        = time.Hour
)

// queue is what the settler is to do. Publisher.mu guards it, except for wake.
type queue struct {
	wake     chan struct{}
	settles  []schedule.Firing // acknowledged
	releases []schedule.Firing // not published in time
	since    time.Time         // when the first of settles came
	closing  bool              // finish what is there and end
}

func (q *queue) acknowledged(f schedule.Firing) {
	f.Payload = nil
	q.settles = append(q.settles, f)
	switch len(q.settles) {
	case 1:
		q.since = time.Now()
		signal(q.wake)
	case settleBatch:
		signal(q.wake)
	}
}

func (q *queue) unpublished(f schedule.Firing) {
	f.Payload = nil
	q.releases = append(q.releases, f)
	signal(q.wake)
}

func (q *queue) close() {
	q.closing = true
	signal(q.wake)
}

// next takes out what is to be done now: firings to give back and firings to
// settle. If there is nothing, wait is how long to rest unless woken.
func (q *queue) next() (releases, settles []schedule.Firing, wait time.Duration) {
	releases, q.releases = q.releases, nil
	wait = settleGather - time.Since(q.since)
	if n := len(q.settles); n == 0 {
		wait = longestRest
	} else if n >= settleBatch || wait <= 0 || q.closing {
		n = min(n, settleBatch)
		settles, q.settles = q.settles[:n:n], q.settles[n:]
	}
	return releases, settles, wait
}

// settle carries out what is in the queue until that is closed and empty, or ctx
// ends. Settling is tried until it works: until then the firings may be published
// again, under the same ids. Giving back is tried once: the leases run out by
// themselves.
func (p *Publisher) settle(ctx context.Context) {
	var failing time.Time // since when settling fails
	pause := firstSettlePause
	for {
		p.mu.Lock()
		releases, settles, wait := p.queue.next()
		closing := p.queue.closing
		p.mu.Unlock()
		if closing && len(releases)+len(settles) == 0 {
			return
		}
		p.release(ctx, releases)
		p.leave(len(releases))
		wake := p.queue.wake
		if err := p.settleBatch(ctx, settles); err != nil {
			if _, some := errors.AsType[*schedule.PartError](err); some {
				pause = firstSettlePause // one server does not hold up what is on the others
			}
			if failing.IsZero() {
				failing = time.Now()
				p.log().Warn("cannot settle published firings, trying until it works", "count", len(settles), "err", err)
			}
			wait, wake = pause, nil
			pause = min(2*pause, longestSettlePause)
		} else if len(settles) > 0 {
			if !failing.IsZero() {
				p.log().Info("settling works again", "after", time.Since(failing).Round(time.Millisecond))
			}
			failing, pause = time.Time{}, firstSettlePause
		}
		if wake != nil && len(releases)+len(settles) > 0 {
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-wake:
		case <-timer.C:
		case <-ctx.Done():
			p.log().Warn("ended with published firings not settled: they may be published again under the same ids", "count", p.InFlight())
			return
		}
		timer.Stop()
	}
}

// settleBatch settles firings, or puts those that it could not settle back in the
// queue.
func (p *Publisher) settleBatch(ctx context.Context, firings []schedule.Firing) error {
	if len(firings) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := p.settler.Settle(ctx, firings)
	settled := len(firings)
	if err != nil {
		left := firings
		if part, ok := errors.AsType[*schedule.PartError](err); ok {
			left = part.Left
		}
		settled -= len(left)
		p.mu.Lock()
		p.queue.settles = append(p.queue.settles, left...)
		p.mu.Unlock()
	}
	p.leave(settled)
	if settled > 0 && p.Hooks.Settled != nil {
		p.Hooks.Settled(settled)
	}
	return err
}

// release gives firings back, as far as that works.
func (p *Publisher) release(ctx context.Context, firings []schedule.Firing) {
	if len(firings) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := p.settler.Release(ctx, firings); err != nil {
		p.log().Warn("cannot give back firings, they can be claimed again when their leases are over", "count", len(firings), "err", err)
		return
	}
	if p.Hooks.Released != nil {
		p.Hooks.Released(len(firings))
	}
}

// leave makes room in the window.
func (p *Publisher) leave(n int) {
	if n == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held -= n
	p.announce()
}
