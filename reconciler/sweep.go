package reconciler

import (
	"context"
	"errors"
	"time"

	"github.com/timerd-io/timerd/schedule"
)

const (
	missedHeartbeats = 4 // after so many sweeps without a heartbeat a timerd is dead
	// horizon is how far beyond the next sweep a scan for due timers looks.
	horizon = 2 * time.Second
	// replanEvery is how often it is looked for what a clock that was ahead has armed, where this timerd has not seen it ahead.
	replanEvery = 10 * time.Second
)

// maintain does at every sweep what keeps the schedule in order.
func (r *Reconciler) maintain(ctx context.Context) {
	sweep := time.NewTicker(r.SweepInterval)
	defer sweep.Stop()
	failing := false
	for ctx.Err() == nil {
		err := r.sweep(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			r.Logger.Warn("sweep failed; trying again at the next", "err", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
		case <-r.taken:
		case <-sweep.C:
		}
	}
}

// beat sends a heartbeat with every sweep, beside it: in a cluster all heartbeats go to one master, which may be silent while the
// reconciler's own works.
func (r *Reconciler) beat(ctx context.Context) {
	beats := time.NewTicker(r.SweepInterval)
	defer beats.Stop()
	failing := false
	for ctx.Err() == nil {
		err := r.heartbeat(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			r.Logger.Warn("heartbeat failed; trying again with the next sweep", "err", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
		case <-beats.C:
		}
	}
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := r.node.Deregister(leaving, r.instance); err != nil {
		r.Logger.Warn("could not deregister; the others close ranks when this timerd stays silent", "err", err)
	}
}

func (r *Reconciler) sweep(ctx context.Context) error {
	return errors.Join(r.scanDue(ctx), r.ensureLibrary(ctx), r.planAgain(ctx))
}

// scanDue has everything claimed that is due, and learns what is due before the sweep after the next.
func (r *Reconciler) scanDue(ctx context.Context) error {
	found, err := r.node.ScanDue(ctx, 2*r.SweepInterval+horizon, r.Lease)
	r.mu.Lock()
	r.health.scan.Note(err)
	if err != nil {
		r.mu.Unlock()
		return err
	}
	for _, h := range found.Heads {
		if h.Due != schedule.AtOnce && r.node.Until(h.Due) > 0 {
			r.learn(h.Partition, h.Due)
		} else {
			r.queue.plan(h.Partition, schedule.Millis(r.standby(h.Partition)))
		}
	}
	r.mu.Unlock()
	signal(r.woken)
	r.OnScanned(found)
	switch moving := len(found.Moving) > 0; {
	case moving && !r.moving:
		r.Logger.Info("timers wait: their slots are moving from one server to another, or the cluster is down",
			"slots", len(found.Moving), "first", found.Moving[0].Slot())
		r.moving = true
	case !moving && r.moving:
		r.Logger.Info("no timers wait any more")
		r.moving = false
	}
	return nil
}

func (r *Reconciler) heartbeat(ctx context.Context) error {
	self := r.Self
	self.Counts = r.Counts()
	rank, of, err := r.node.Heartbeat(ctx, self, missedHeartbeats*r.SweepInterval)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rank, r.of = rank, max(of, 1)
	return nil
}

func (r *Reconciler) ensureLibrary(ctx context.Context) error {
	loaded, limit, err := r.node.EnsureLibrary(ctx)
	if err != nil {
		return err
	}
	if loaded {
		r.Logger.Warn("the function library was gone; loaded it again", "library", schedule.LibraryName)
	}
	if limit > 0 {
		r.Logger.Warn("a timerd that started later has changed the payload limit: it holds here too, instead of TIMERD_MAX_PAYLOAD", "bytes", limit)
	}
	return nil
}

// planAgain has the occurrences planned again that were armed by a clock that was ahead, once it is back.
func (r *Reconciler) planAgain(ctx context.Context) error {
	if !r.node.IsBehind() && time.Since(r.replanned) < replanEvery {
		return nil
	}
	n, err := r.node.Replan(ctx)
	if n > 0 {
		r.Logger.Warn("the clock of Redis was ahead and is back: the next occurrences of timers that repeat are planned again", "timers", n)
		r.OnReplanned(n)
	}
	if err == nil {
		r.replanned = time.Now()
	}
	return err
}
