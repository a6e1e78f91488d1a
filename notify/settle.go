package notify

import (
	"context"
	"errors"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// settleBatch is how many firings are settled in one call: large enough that the call itself costs little beside
	// them, small enough not to hold Redis.
	settleBatch = 256
	// settleBytes is how many bytes of payload are settled in one call, about: Redis takes some 50 µs to free one of the
	// largest size.
	settleBytes = 4 << 20
	// settleDelay is how long acknowledged firings wait for others to be settled with. They are published, so it delays
	// nothing.
	settleDelay = 20 * time.Millisecond
	// callTimeout bounds one call to the settler.
	callTimeout = 5 * time.Second

	firstSettlePause   = 50 * time.Millisecond
	longestSettlePause = 2 * time.Second
	longestRest        = time.Hour
)

// queue is what is to be settled and given back. Publisher.mu guards it, except for wake.
type queue struct {
	wake     chan struct{}
	settles  []schedule.Firing // acknowledged
	releases []schedule.Firing // not published in time
	since    time.Time         // when the first of settles came
	closing  bool              // finish what is there and end
}

func (q *queue) addSettle(f schedule.Firing) {
	f.Bytes, f.Payload = len(f.Payload), nil
	q.settles = append(q.settles, f)
	switch len(q.settles) {
	case 1:
		q.since = time.Now()
		signal(q.wake)
	case settleBatch:
		signal(q.wake)
	}
}

func (q *queue) addRelease(f schedule.Firing) {
	f.Payload = nil
	q.releases = append(q.releases, f)
	signal(q.wake)
}

// next takes out what is to be done now: firings to give back and firings to settle. If there is nothing, wait is how
// long to rest unless woken.
func (q *queue) next() (releases, settles []schedule.Firing, wait time.Duration) {
	releases, q.releases = q.releases, nil
	wait = settleDelay - time.Since(q.since)
	if n := len(q.settles); n == 0 {
		wait = longestRest
	} else if n >= settleBatch || wait <= 0 || q.closing {
		n = fitting(q.settles[:min(n, settleBatch)])
		settles, q.settles = q.settles[:n:n], q.settles[n:]
	}
	return releases, settles, wait
}

// fitting returns how many of firings, of which there are some, are settled in one call.
func fitting(firings []schedule.Firing) int {
	bytes := 0
	for i := range firings {
		if bytes += firings[i].Bytes; bytes > settleBytes {
			return max(i, 1)
		}
	}
	return len(firings)
}

// settle carries out what is in the queue until that is closed and empty, or ctx ends. Settling is tried until it
// works; the firings may be published again until then, under the same ids. Giving back is tried once, because a lease
// that runs out has the same effect.
func (p *Publisher) settle(ctx context.Context) {
	failing := backoff.Backoff{Policy: backoff.Policy{First: firstSettlePause, Longest: longestSettlePause}, Logger: p.Logger}
	for {
		p.mu.Lock()
		releases, settles, wait := p.queue.next()
		closing := p.queue.closing
		p.mu.Unlock()
		if closing && len(releases)+len(settles) == 0 {
			return
		}
		p.giveBack(ctx, releases)
		p.makeRoom(len(releases))
		wake := p.queue.wake
		if err := p.settleBatch(ctx, settles); err != nil {
			wait, wake = failing.Fail("cannot settle published firings, trying until it works", err, "count", len(settles)), nil
			if _, some := errors.AsType[*schedule.PartError](err); some {
				wait = firstSettlePause // one server does not hold up what is on the others
			}
		} else if len(settles) > 0 {
			if after := failing.Succeed(); after > 0 {
				p.Logger.Info("settling works again", "after", after.Round(time.Millisecond))
			}
		}
		if wake != nil && len(releases)+len(settles) > 0 {
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-wake:
		case <-timer.C:
		case <-ctx.Done():
			p.Logger.Warn("ended with published firings not settled: they may be published again under the same ids", "count", p.InFlight())
			return
		}
		timer.Stop()
	}
}

// settleBatch settles firings, or puts those that it could not settle back in the queue.
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
	p.makeRoom(settled)
	if settled > 0 {
		p.OnSettled(settled)
	}
	return err
}

// giveBack gives firings back to the schedule, as far as that works.
func (p *Publisher) giveBack(ctx context.Context, firings []schedule.Firing) {
	if len(firings) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := p.settler.Release(ctx, firings); err != nil {
		p.Logger.Warn("cannot give back firings, they can be claimed again when their leases are over", "count", len(firings), "err", err)
		return
	}
	p.OnReleased(len(firings))
}

// makeRoom takes n firings out of the window.
func (p *Publisher) makeRoom(n int) {
	if n == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held -= n
	p.announce()
}
