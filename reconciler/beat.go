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
	// missedHeartbeats is the number of sweeps without a heartbeat after which a timerd is dead.
	missedHeartbeats = 4
	// enoughHear is the number of timerds that should hear the events of a server: the first in rank and one other.
	enoughHear = 2
	// enoughDoubts is the number of consecutive answers that must show too few listeners before that is believed: the
	// first answer after a silence of the server may come before the other timerds have reported.
	enoughDoubts = 2
	// believedSweeps is the time, in sweeps, for which a timerd's report that it hears the events of a server is valid.
	believedSweeps = 2
	// shortestSweep is the least interval in believedSweeps, and in the limit of a call: the canary, which shows that a
	// timerd hears events, is sent once a second.
	shortestSweep = time.Second
)

// Believed returns the time for which a timerd counts as hearing the events of a server after its last proof.
func Believed(sweepInterval time.Duration) time.Duration {
	return believedSweeps * max(sweepInterval, shortestSweep)
}

// beater sends a heartbeat with every sweep, and asks the node for its listeners. In a cluster all heartbeats go to one
// master, which may be silent while the node works.
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

	standing schedule.Standing // from the answer to the last answered heartbeat
	beatAt   time.Time         // time of that answer; at first, of the start
	askedAt  time.Time         // time of the last answer about listeners; at first, of the start
	steady   time.Time         // since then every heartbeat was answered in time; zero if the last one was not
	enough   int               // consecutive answers with enough other listeners
	doubts   int               // consecutive answers with fewer
}

// answer is the result of a beat. Its parts have their own errors.
type answer struct {
	standing         schedule.Standing
	hearing          schedule.Hearing
	beatErr, hearErr error
}

// take applies an answer. Normally this timerd hears the events. It is passive, and does not hear them, only if enough
// timerds of lower rank have heard the node for a while. So it stops only after the others have begun, and a new timerd
// does not rely on others that have just died. If one of the two calls has had no answer for missedHeartbeats sweeps,
// this timerd hears the events. If the heartbeats have had none, it also acts as the first timerd.
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
		if a.standing.Missed && gap >= silence { // and it was not a step of the server's clock
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

// isSteady reports whether each heartbeat was answered for the time after which other timerds count as dead.
func (b *beater) isSteady() bool {
	silence := missedHeartbeats * b.interval
	return !b.steady.IsZero() && time.Since(b.steady) >= silence && time.Since(b.beatAt) < silence
}

// beat sends a heartbeat and asks for listeners, at the same time because the servers may differ. Neither call takes
// longer than a sweep.
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
