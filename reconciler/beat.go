package reconciler

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/timerd-io/timerd/schedule"
)

const (
	// missedHeartbeats is after how many sweeps without a heartbeat a timerd is dead.
	missedHeartbeats = 4
	// enoughHear is how many timerds hear a server: the first in rank and one other.
	enoughHear = 2
	// enoughDoubts is how many answers in a row must say that fewer hear before that is believed: the first answer
	// after a server was silent may come before the others have said that they hear.
	enoughDoubts = 2
	// believedSweeps is for how many sweeps a timerd is believed to hear a server after it said so.
	believedSweeps = 2
	// shortestSweep is the least sweep that this and the deadline of a call go by: the canary, which shows that a
	// timerd hears, is sent once a second.
	shortestSweep = time.Second
)

// Believed returns for how long a timerd counts as hearing a server after events showed it.
func Believed(sweepInterval time.Duration) time.Duration {
	return believedSweeps * max(sweepInterval, shortestSweep)
}

// beater sends a heartbeat with every sweep, beside it, and asks the node for its listeners. In a cluster all
// heartbeats go to one master, which may be silent while the node works.
type beater struct {
	members    Membership
	agenda     *agenda
	interval   time.Duration
	self       schedule.Self
	counts     func() *schedule.Counts
	log        *slog.Logger
	canPublish func() bool
	events     Events
	metrics    Metrics

	standing schedule.Standing // by the last heartbeat that was answered
	beatAt   time.Time         // when that was; at first, when it began
	askedAt  time.Time         // likewise of the last answer about listeners
	steady   time.Time         // since when each heartbeat was answered in time; zero if the last one was not
	enough   int               // answers in a row with enough other listeners
	doubts   int               // answers in a row with fewer
}

// answer is the result of a beat. Its parts have their own errors.
type answer struct {
	standing         schedule.Standing
	hearing          schedule.Hearing
	beatErr, hearErr error
}

// take takes in an answer. This timerd hears, and is not passive, unless enough timerds of a lower rank have heard the
// node for a while: so it stops only after the others have begun, and a new one does not rely on others that have just
// died. After missedHeartbeats sweeps without an answer to one of the two calls each timerd hears, and without one to
// its heartbeats it acts as the first.
func (b *beater) take(a answer) {
	now := time.Now()
	silence := missedHeartbeats * b.interval
	gap := now.Sub(b.beatAt)
	switch {
	case a.beatErr != nil:
		b.steady = time.Time{}
	case b.steady.IsZero() || gap >= silence:
		b.steady = now
	}
	if a.beatErr == nil {
		b.standing, b.beatAt = a.standing, now
		if a.standing.Missed && gap >= silence { // and it was not the server's clock that went on
			b.metrics.Unanswered(gap)
		}
	}
	if a.hearErr == nil {
		b.askedAt = now
	}
	alone := now.Sub(b.beatAt) >= silence
	rank, hearing := 0, 0
	if !alone {
		rank, hearing = b.agenda.before(b.self.Instance, b.standing, a.hearing)
	}
	switch {
	case alone || now.Sub(b.askedAt) >= silence:
		b.enough = 0
	case a.hearErr != nil:
	case hearing < enoughHear:
		if b.doubts++; b.doubts >= enoughDoubts || b.enough < missedHeartbeats {
			b.enough = 0
		}
	case a.beatErr == nil:
		b.enough++
		b.doubts = 0
	}
	passive := b.enough >= missedHeartbeats
	b.agenda.setRank(rank, passive)
	b.events.Hear(!passive)
}

// isSteady reports whether each heartbeat was answered for as long as makes another timerd dead.
func (b *beater) isSteady() bool {
	silence := missedHeartbeats * b.interval
	return !b.steady.IsZero() && time.Since(b.steady) >= silence && time.Since(b.beatAt) < silence
}

// beat sends a heartbeat and asks for listeners at the same time: the servers may be two. Neither call takes longer
// than a sweep.
func (b *beater) beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, max(b.interval, shortestSweep))
	defer cancel()
	self := b.self
	self.Counts, self.CannotPublish, self.Steady = b.counts(), !b.canPublish(), b.isSteady()
	var a answer
	var asking sync.WaitGroup
	asking.Go(func() { a.standing, a.beatErr = b.members.Heartbeat(ctx, self, missedHeartbeats*b.interval) })
	asking.Go(func() { a.hearing, a.hearErr = b.members.Hearing(ctx, self, b.events.Hears(), Believed(b.interval)) })
	asking.Wait()
	b.take(a)
	return errors.Join(a.beatErr, a.hearErr)
}

// run beats until ctx ends, and then deregisters.
func (b *beater) run(ctx context.Context) {
	b.beatAt = time.Now()
	b.askedAt = b.beatAt
	every(ctx, b.interval, nil, b.log, "heartbeat failed; trying again with the next sweep", b.beat)
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := b.members.Deregister(leaving, b.self); err != nil {
		b.log.Warn("could not deregister; the others close ranks when this timerd stays silent", "err", err)
	}
}
