package reconciler

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/timerd-io/timerd/schedule"
)

const (
	// horizon is the time by which a sweep looks beyond the next one for due timers.
	horizon = 2 * time.Second
	// putRightEvery is the interval at which the first timerd corrects the times of a fast clock even if it has not
	// seen the clock ahead. Each time it asks all partitions.
	putRightEvery = 30 * time.Second
	// lookEvery is the longest time between two looks of sweeps at each partition of a cluster.
	lookEvery = 5 * time.Second
	// accountEvery is the interval at which the first timerd compares the accounts with the timers, rounded down to
	// sweeps. With the time of a comparison it is under a minute, unless the sweeps are that far apart.
	accountEvery = 50 * time.Second
)

// Scanner finds due timers.
type Scanner interface {
	Sweep(ctx context.Context, l schedule.Look) (schedule.DueScan, error)
}

// Keeper maintains the function library and the accounts, and corrects the times that a fast clock has written.
type Keeper interface {
	EnsureLibrary(ctx context.Context) (loaded bool, limit int, err error)
	IsBehind() bool
	PutRight(ctx context.Context, lease time.Duration) (planned, shortened int, err error)
	KeepAccount(ctx context.Context) ([]schedule.AccountDifference, error)
}

// Membership knows the timerds of the schedule and the listeners of the node.
type Membership interface {
	Heartbeat(ctx context.Context, self schedule.Self, ttl time.Duration) (schedule.Standing, error)
	Hearing(ctx context.Context, self schedule.Self, hears bool, believed time.Duration) (schedule.Hearing, error)
	Deregister(ctx context.Context, self schedule.Self) error
}

// every calls do at once, at each tick, and whenever sooner receives, until ctx ends. It logs the first of several
// consecutive failures.
func every(
	ctx context.Context, interval time.Duration, sooner <-chan struct{}, log *slog.Logger, failed string,
	do func(context.Context) error,
) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	failing := false
	for ctx.Err() == nil {
		err := do(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			log.Warn(failed, "err", err) //nolint:sloglint // the caller's constant
		}
		failing = err != nil
		select {
		case <-ctx.Done():
		case <-sooner:
		case <-tick.C:
		}
	}
}

// sweeper keeps the schedule in order at every sweep.
type sweeper struct {
	scanner         Scanner
	keeper          Keeper
	agenda          *agenda
	health          *health
	takenOver       <-chan struct{}
	interval, lease time.Duration
	log             *slog.Logger
	metrics         Metrics
	onTorn          func([]schedule.Torn)
	onSetBack       func() // called after the clock was set back, unless this timerd is passive

	skipped    bool      // the last sweep was skipped
	passive    bool      // this timerd was passive at the last sweep
	moving     bool      // moving slots were reported
	putRightAt time.Time // last correction of a fast clock's times
	behind     bool      // the clock was behind at the last sweep
	accountAt  time.Time // last comparison of the accounts
}

// run sweeps until ctx ends.
func (s *sweeper) run(ctx context.Context) {
	every(ctx, s.interval, s.takenOver, s.log, "sweep failed; trying again at the next",
		func(ctx context.Context) error {
			return errors.Join(s.scanDue(ctx), s.ensureLibrary(ctx), s.putRight(ctx), s.keepAccount(ctx))
		})
}

// scanDue finds the timers that are due before the sweep after the next one, so that they are claimed on time.
func (s *sweeper) scanDue(ctx context.Context) error {
	if s.skips() {
		return nil
	}
	passive := s.agenda.isPassive()
	found, err := s.scanner.Sweep(ctx, schedule.Look{
		Within: 2*s.interval + horizon, Lease: s.lease, Every: s.lookEvery(), All: s.passive && !passive,
	})
	s.health.noteScan(err)
	if err != nil {
		return err
	}
	s.passive = passive
	s.agenda.swept(found, s.interval <= s.lease)
	s.onTorn(found.Torn)
	s.metrics.Swept(found)
	switch moving := len(found.Moving) > 0; {
	case moving && !s.moving:
		s.log.Info("timers wait: their slots are moving from one server to another, or the cluster is down",
			"slots", len(found.Moving), "first", found.Moving[0].Slot())
		s.moving = true
	case !moving && s.moving:
		s.log.Info("no timers wait any more")
		s.moving = false
	}
	return nil
}

// skips reports whether to skip this sweep. A timerd that is not the first skips every second sweep if the firings of a
// dead timerd are still found within the lease and a sweep.
func (s *sweeper) skips() bool {
	s.skipped = !s.skipped && missedHeartbeats*s.interval <= s.lease && !s.agenda.isFirst()
	return s.skipped
}

// lookEvery returns the longest time between two looks at each partition. It is half a lease, so that a dead timerd's
// claim is found before its lease ends. The second timerd, which has nothing else to do, looks half as often.
func (s *sweeper) lookEvery() time.Duration {
	every := min(s.lease/2, lookEvery)
	if !s.agenda.isFirst() && !s.agenda.isPassive() {
		every *= 2
	}
	return every
}

func (s *sweeper) ensureLibrary(ctx context.Context) error {
	loaded, limit, err := s.keeper.EnsureLibrary(ctx)
	if err != nil {
		return err
	}
	if loaded {
		s.log.Warn("the function library was gone; loaded it again", "library", schedule.LibraryName)
	}
	if limit > 0 {
		s.log.Warn("a timerd that started later has changed the payload limit: it replaces TIMERD_MAX_PAYLOAD here too",
			"bytes", limit)
	}
	return nil
}

// keepAccount compares the accounts with the timers, if this timerd is the first.
func (s *sweeper) keepAccount(ctx context.Context) error {
	if !s.agenda.isFirst() {
		if !s.accountAt.IsZero() {
			s.accountAt = time.Time{}
			s.metrics.AccountDiffers(0) // another timerd does
		}
		return nil
	}
	if time.Since(s.accountAt) < accountEvery-s.interval {
		return nil
	}
	found, err := s.keeper.KeepAccount(ctx)
	if err != nil {
		return err
	}
	s.accountAt = time.Now()
	var timers int64
	for _, d := range found {
		timers += max(d.Difference, -d.Difference)
	}
	s.metrics.AccountDiffers(timers)
	return nil
}

// putRight corrects the times of a fast clock once the clock is right again. It does so at its start, and at once if
// this timerd has seen the clock ahead.
func (s *sweeper) putRight(ctx context.Context) error {
	was := s.behind
	s.behind = s.keeper.IsBehind()
	if s.behind && !was && !s.agenda.isPassive() {
		s.onSetBack()
	}
	regular := s.putRightAt.IsZero() || s.agenda.isFirst() && time.Since(s.putRightAt) >= putRightEvery
	if !s.behind && !regular {
		return nil
	}
	planned, shortened, err := s.keeper.PutRight(ctx, s.lease)
	if planned > 0 {
		s.log.Warn(
			"the clock of Redis was ahead and is back: the next occurrences of repeating timers are planned again",
			"timers", planned)
		s.metrics.Replanned(planned)
	}
	if shortened > 0 {
		s.log.Warn("the clock of Redis was ahead and is back: its overlong claims and pauses are shortened", "timers",
			shortened)
	}
	if err == nil {
		s.putRightAt = time.Now()
	}
	return err
}
