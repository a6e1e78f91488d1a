package reconciler

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/schedule"
)

// Times and limits of firing that are not worth a setting.
const (
	// coalesceFor is the pause between claims under load, so that each claim brings several timers. At 3,333 timers a
	// second it keeps the median lateness under 1.2 ms; docs/inside/schedule.md has the gain of a longer pause.
	coalesceFor = time.Millisecond
	// coalesceSlots is coalesceFor for the masters of a cluster. There, due timers usually have a slot each, and share
	// the fixed cost of a call. The pause adds as much to the lateness. All masters are claimed from at multiples of
	// it, so that the process wakes up once for all.
	coalesceSlots = 4 * time.Millisecond
	// preciseFor is the time before a claim at which the precise timer takes over from Go's timer. Go's timer is up to
	// a millisecond late in an idle process. BenchmarkSleepUntilClaim compares the two.
	preciseFor = 1200 * time.Microsecond
	claimGrace = time.Second // for a claim under way when the process stops
	// slack is the number of firings that a claim expects beyond the number of the last claim.
	slack = 4
)

// Claimer claims due timers.
type Claimer interface {
	Claim(ctx context.Context, requests []schedule.ClaimRequest, lease time.Duration) []schedule.ClaimResult
}

// Publisher takes over claimed firings.
type Publisher interface {
	// Wait waits until firings of a node, given by its name, can be published. It returns an error when ctx ends.
	// Nothing is claimed before that.
	Wait(ctx context.Context, node string) error
	// Publish takes firings over. Once ctx has ended it takes as many as there is room for, and gives the others back.
	Publish(ctx context.Context, firings []schedule.Firing) error
}

// firer claims at each known due time, and after each sweep that found due timers.
type firer struct {
	name      string // of the server
	claimer   Claimer
	publisher Publisher
	agenda    *agenda
	health    *health
	busy      *atomic.Bool // due timers are left to claim
	lease     time.Duration
	log       *slog.Logger
	metrics   Metrics
	precise   *preciseTimer

	claimedAt time.Time // of the last claim with firings
	expected  int       // firings of the next claim
}

// run fires until ctx ends.
func (f *firer) run(ctx context.Context) {
	deadline := time.NewTimer(longestSleep)
	defer deadline.Stop()
	retry := newBackoff(f.log)
	for ctx.Err() == nil {
		// Until a timer is due and, under load, until the coalescing delay has passed.
		due, delay := f.agenda.wait(), f.coalesce(time.Now())
		wait := max(due, delay)
		switch {
		case wait > preciseFor && due > delay:
			deadline.Reset(wait - preciseFor)
			select {
			case <-ctx.Done():
			case <-f.agenda.woken:
			case <-deadline.C:
			}
			continue
		case wait > 0:
			f.precise.sleep(wait)
			continue
		}
		if err := f.drain(ctx); err == nil {
			retry.Succeed()
		} else if ctx.Err() == nil {
			backoff.Sleep(ctx, retry.Fail("cannot fire timers; trying again", err))
		}
	}
}

// coalesce returns the pause before the next claim, at most coalesceSlots.
func (f *firer) coalesce(now time.Time) time.Duration {
	if f.name == "" {
		return coalesceFor - now.Sub(f.claimedAt)
	}
	slot := now.Truncate(coalesceSlots)
	if !f.claimedAt.Truncate(coalesceSlots).Equal(slot) { // whatever the clock does meanwhile
		return 0
	}
	return slot.Add(coalesceSlots).Sub(now)
}

// drain claims and publishes batches until nothing is due. It claims the next batch while the last one is being
// published.
func (f *firer) drain(ctx context.Context) error {
	defer f.busy.Store(false)
	var publishing errgroup.Group
	publishing.SetLimit(1)
	more := false
	for {
		f.busy.Store(false) // NATS may be away for long
		if err := f.publisher.Wait(ctx, f.name); err != nil {
			return errors.Join(err, publishing.Wait())
		}
		f.busy.Store(more)
		var firings []schedule.Firing
		var err error
		firings, more, err = f.claim(ctx)
		if len(firings) > 0 {
			f.claimedAt = time.Now()
		}
		if err != nil || !more {
			return errors.Join(err, publishing.Wait(), f.publish(ctx, firings))
		}
		publishing.Go(func() error { return f.publish(ctx, firings) })
	}
}

// publish passes firings to the publisher, if there are any.
func (f *firer) publish(ctx context.Context, firings []schedule.Firing) error {
	if len(firings) == 0 {
		return nil
	}
	return f.publisher.Publish(ctx, firings)
}

// claim claims once from each partition with due timers. It returns the firings, also with an error, and whether there
// were more.
func (f *firer) claim(ctx context.Context) (firings []schedule.Firing, more bool, err error) {
	requests := f.agenda.takeDue(f.expected)
	more = len(requests) == claimBatch
	// If a claim were interrupted, its timers could not fire until the lease is over.
	claiming, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(claimGrace, end) })()
	for i, result := range f.claimer.Claim(claiming, requests, f.lease) {
		f.health.noteClaim(requests[i].Partition, result.Err)
		if result.Err != nil {
			moving := schedule.IsMoving(result.Err)
			f.agenda.putBack(requests[i], moving)
			if !moving {
				err = errors.Join(err, result.Err)
			}
			continue
		}
		more = f.agenda.claimed(&result) || more
		f.report(&result)
		firings = append(firings, result.Firings...)
	}
	if more {
		f.expected = schedule.MaxClaim
	} else {
		f.expected = len(firings) + slack
	}
	return firings, more, err
}

// report reports the changes of a claim.
func (f *firer) report(result *schedule.ClaimResult) {
	for _, err := range result.Corrupt {
		f.log.Error("removed an entry that is not a timer from the schedule", "err", err)
	}
	if len(result.Firings) > 0 || result.Rescheduled > 0 || result.Cancelled > 0 || result.Parked > 0 {
		f.metrics.Claimed(result)
	}
}
