package reconciler

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/schedule"
)

// Times and limits of firing that are not worth a setting.
const (
	// coalesceFor is how long after the answer to a claim the next one is made while timers
	// are due all the time, so that each brings several: the more, the more are due. It is what keeps the median lateness at
	// 3,333 timers a second under 1.2 ms. docs/architecture.md has what a longer one saves.
	coalesceFor = time.Millisecond
	// preciseFor is how long before a claim Go's timers give way to the precise one: they are up to a millisecond late
	// in a process that has nothing else to do. BenchmarkSleepUntilClaim compares the two.
	preciseFor   = 1200 * time.Microsecond
	longestSleep = time.Hour
	claimGrace   = time.Second // for a claim under way when the process stops
	// slack is how many more firings than the last claim brought the next one looks for.
	slack = 4
	// claimBatch is how many partitions one round trip claims from: what they bring
	// may exceed the publisher's window, which takes the rest as it gets room.
	claimBatch = 32
	// movingPause is the pause before the next claim from a partition that is moving
	// from one server of a cluster to another.
	movingPause = 100 * time.Millisecond
)

// fire claims at each due time that is known and whenever a sweep has found something.
func (r *Reconciler) fire(ctx context.Context) {
	deadline := time.NewTimer(longestSleep)
	defer deadline.Stop()
	precise, err := newPreciseTimer()
	if err != nil {
		r.Logger.Warn("no precise timer: firings may be a millisecond later", "err", err)
	}
	defer func() { _ = precise.close() }()
	retry := r.newBackoff()
	for ctx.Err() == nil {
		if wait := r.untilClaim(); wait > preciseFor {
			deadline.Reset(wait - preciseFor)
			select {
			case <-ctx.Done():
			case <-r.woken:
			case <-deadline.C:
			}
			continue
		} else if wait > 0 {
			precise.sleep(wait)
			continue
		}
		if err := r.drain(ctx); err == nil {
			retry.Succeed()
		} else if ctx.Err() == nil {
			backoff.Sleep(ctx, retry.Fail("cannot fire timers; trying again", err))
		}
	}
}

// untilClaim returns how long to sleep before the next claim: until something is due and, under load, until the
// coalescing delay has passed.
func (r *Reconciler) untilClaim() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(r.until(r.queue.next()), coalesceFor-time.Since(r.claimedAt))
}

// until returns how long it is until a time in the queue.
func (r *Reconciler) until(at schedule.Millis) time.Duration {
	if at == schedule.Never {
		return longestSleep
	}
	return min(r.node.Until(at), longestSleep)
}

// takeDue takes the partitions whose time has come out of the queue.
func (r *Reconciler) takeDue() []schedule.ClaimRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	var requests []schedule.ClaimRequest
	for len(requests) < claimBatch && r.until(r.queue.next()) <= 0 {
		p, known := r.queue.take()
		if r.node.Owns(p) {
			requests = append(requests, schedule.ClaimRequest{Partition: p, Known: known, Expected: r.expected})
		}
	}
	return requests
}

// drain claims and publishes batches until nothing is due. While one is being published the next is claimed.
func (r *Reconciler) drain(ctx context.Context) error {
	defer r.busy.Store(false)
	var publishing errgroup.Group
	publishing.SetLimit(1)
	more := false
	for {
		r.busy.Store(false) // NATS may be away for long
		if err := r.publisher.Wait(ctx, r.node.Name()); err != nil {
			return errors.Join(err, publishing.Wait())
		}
		r.busy.Store(more)
		var firings []schedule.Firing
		var err error
		firings, more, err = r.claim(ctx)
		if len(firings) > 0 {
			r.claimedAt = time.Now()
		}
		if err != nil || !more {
			return errors.Join(err, publishing.Wait(), r.publish(ctx, firings))
		}
		publishing.Go(func() error { return r.publish(ctx, firings) })
	}
}

// publish hands firings over, if there are any.
func (r *Reconciler) publish(ctx context.Context, firings []schedule.Firing) error {
	if len(firings) == 0 {
		return nil
	}
	return r.publisher.Publish(ctx, firings)
}

// claim claims once from each partition where something is due. It returns what it
// has claimed, also with an error, and whether there was more.
func (r *Reconciler) claim(ctx context.Context) (firings []schedule.Firing, more bool, err error) {
	requests := r.takeDue()
	more = len(requests) == claimBatch
	// A claim that is given up in the middle keeps its timers from firing until the lease is over.
	claiming, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(claimGrace, end) })()
	for i, result := range r.node.Claim(claiming, requests, r.Lease) {
		if result.Err != nil {
			err = errors.Join(err, r.replan(requests[i], result.Err))
			continue
		}
		more = r.takeIn(result) || more
		firings = append(firings, result.Firings...)
	}
	if more {
		r.expected = schedule.MaxClaim
	} else {
		r.expected = len(firings) + slack
	}
	return firings, more, err
}

// takeIn notes what a claim told, and returns whether there was more to claim.
func (r *Reconciler) takeIn(result schedule.ClaimResult) (more bool) {
	now := schedule.MillisOf(result.At)
	more = result.Untidy || result.Next != schedule.Nothing && result.Next <= now
	r.mu.Lock()
	r.health.noteClaim(result.Partition, nil)
	if result.Next != schedule.Nothing {
		r.learn(result.Partition, result.Next)
	}
	if more {
		r.queue.plan(result.Partition, now)
	}
	r.mu.Unlock()
	for _, err := range result.Corrupt {
		r.Logger.Error("removed from the schedule what is no timer", "err", err)
	}
	if len(result.Firings) > 0 || result.Rescheduled > 0 || result.Cancelled > 0 || result.SetAside > 0 {
		r.OnClaimed(result)
	}
	return more
}

// replan puts a partition that could not be claimed from back into the queue. It returns the error unless the
// partition is just moving.
func (r *Reconciler) replan(request schedule.ClaimRequest, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.health.noteClaim(request.Partition, err)
	if request.Known != schedule.Never {
		r.queue.learn(request.Partition, request.Known)
	}
	if schedule.IsMoving(err) {
		r.queue.plan(request.Partition, r.node.Now().Add(movingPause))
		return nil
	}
	r.queue.plan(request.Partition, schedule.AtOnce)
	return err
}
