package reconciler

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	pageCount = 128 // index entries per audit step
	forever   = 100 * 365 * 24 * time.Hour
	// subscribesWithin is for how long the first audit waits for the first subscription, after which there has to be one
	// in any case: an audit of 20 million timers takes minutes.
	subscribesWithin = 500 * time.Millisecond
	// recordPause is the least time between two reports of audits that nothing asked for.
	recordPause = 10 * time.Second
	// maxDrift is how far the estimate of the server's clock may be ahead of it.
	maxDrift = time.Second

	// auditInterval is how often everything is audited though no gap was noticed.
	auditInterval = 10 * time.Minute
	// auditShare is the part of the time that audits may take at most while they
	// stand in for events, or follow slots that move one after the other.
	auditShare = 10

	// unfollowedInterval is how often the timers alone are audited while the keys of some are not followed.
	unfollowedInterval = time.Minute

	// The reasons of audits that nothing asked for; those of reasonUnfollowed are of the timers alone.
	reasonRegular    = "regular"
	reasonUnfollowed = "keys not followed"
	// reasonTakenOver is the reason of an audit of partitions that came from another server of a cluster.
	reasonTakenOver = "slots moved"
)

// audit audits at start, after every gap, and regularly.
func (r *Reconciler) audit(ctx context.Context) {
	retry := r.newBackoff()
	reason := "start"
	select {
	case <-ctx.Done():
		return
	case reason = <-r.gaps:
	case <-time.After(subscribesWithin):
	}
	var complete time.Time // when the last audit of everything began
	for {
		began := time.Now()
		r.auditing.Store(true)
		seen, err := r.auditOnce(ctx, reason != reasonUnfollowed)
		r.auditing.Store(false)
		took := time.Since(began)
		if ctx.Err() != nil {
			return
		}
		var wait time.Duration
		var next string
		if err == nil {
			retry.Succeed()
			r.report(reason, seen, took)
			r.record(ctx, reason, took)
			if reason != reasonUnfollowed {
				complete = began
			}
			wait, next = r.untilAudit(took, time.Since(complete))
		} else {
			wait, next = retry.Fail("audit failed; trying again", err, "reason", reason), reason
			if schedule.IsMoving(err) {
				wait = max(wait, (auditShare-1)*took)
			}
		}
		select {
		case <-ctx.Done():
			return
		case next = <-r.gaps:
		case <-r.unfollowed:
			if err == nil {
				next = reasonUnfollowed
			}
		case <-time.After(wait):
		}
		if next == reasonTakenOver && !backoff.Sleep(ctx, (auditShare-1)*took) {
			return
		}
		reason = next
	}
}

// untilAudit returns how long to wait for the next audit after one that took some time, and its reason. since is how long
// ago the last audit of everything began.
func (r *Reconciler) untilAudit(took, since time.Duration) (wait time.Duration, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rest := (auditShare - 1) * took
	switch left := auditInterval - since; {
	case r.incomplete:
		return max(r.SweepInterval, rest), reasonRegular
	case r.beyond && left > unfollowedInterval:
		return max(unfollowedInterval, rest), reasonUnfollowed
	default:
		return max(left, rest), reasonRegular
	}
}

// report tells of an audit.
func (r *Reconciler) report(reason string, seen schedule.Observed, took time.Duration) {
	known := reason == reasonRegular || reason == reasonUnfollowed
	if seen.Kept > 0 || !known && (seen.Adopted > 0 || seen.Rescheduled > 0 || seen.Cancelled > 0) {
		r.Logger.Info("audited", "reason", reason, "adopted", seen.Adopted,
			"rescheduled", seen.Rescheduled, "cancelled", seen.Cancelled, "kept_without_key", seen.Kept, "took", took)
	}
	r.OnAudit(reason, seen, took)
}

// record leaves a report of an audit in Redis, for whoever asks for the state of the schedule.
func (r *Reconciler) record(ctx context.Context, reason string, took time.Duration) {
	usual := reason == reasonRegular || reason == reasonUnfollowed
	if r.counted == nil || usual && time.Since(r.recorded) < recordPause {
		return
	}
	report := schedule.AuditReport{
		Node: r.node.Name(), Instance: r.instance, At: r.node.Now().Time(), Took: took, Reason: reason, Timers: r.counted,
	}
	r.mu.Lock()
	if report.Gaps = r.gapsNoted; report.Gaps > 0 {
		report.LastGap, report.GapAt = r.lastGap, r.gapAt.Time()
	}
	r.mu.Unlock()
	if err := r.node.RecordAudit(ctx, report); err != nil && ctx.Err() == nil {
		r.Logger.Warn("cannot leave a report of the audit for timerd status", "err", err)
	}
	r.recorded = time.Now()
}

// auditOnce adopts the keys of the namespaces that the index lacks, if it is to be complete. Once it is known whether
// events are heard, it also takes out of the index what has lost its key, and forgets apps without timers. It goes on past
// partitions that are moving, and returns an error for them at the end.
func (r *Reconciler) auditOnce(ctx context.Context, complete bool) (schedule.Observed, error) {
	var seen schedule.Observed
	var moving error
	r.counted = nil
	fault := func(err error) (schedule.Observed, error) { return seen, fmt.Errorf("audit the index: %w", err) }
	audit, err := r.node.BeginAudit(ctx)
	if err != nil {
		return fault(err)
	}
	began := r.node.Now().Add(-maxDrift)
	if complete {
		if err := r.adoptAll(ctx, &seen); schedule.IsMoving(err) {
			moving = err
		} else if err != nil {
			return seen, fmt.Errorf("audit the keys: %w", err)
		}
	}
	if audit == nil {
		return seen, moving // the first subscription asks for another audit
	}
	audit.CountBy(r.namespaces.Counted())
	found, err := r.node.ScanDue(ctx, forever, r.Lease)
	if err != nil {
		return fault(err)
	}
	for _, h := range found.Heads {
		err := r.auditPartition(ctx, audit, h.Partition, began, &seen)
		if err == nil && found.Firing > 0 {
			err = audit.CountFirings(ctx, h.Partition)
		}
		if schedule.IsMoving(err) {
			moving = err
		} else if err != nil {
			return fault(err)
		}
	}
	if moving == nil && len(found.Moving) == 0 {
		audit.Complete()
		r.counted = audit.Counted()
	}
	if err := r.node.ForgetApps(ctx); err != nil {
		return fault(err)
	}
	return seen, moving
}

// auditPartition audits the timers of a partition. began is when that began at the earliest, on the server's clock.
func (r *Reconciler) auditPartition(ctx context.Context, audit *schedule.Audit, p keys.Partition, began schedule.Millis, seen *schedule.Observed) error {
	met := map[string]bool{}
	for cursor := uint64(0); ; {
		next, page, err := audit.Page(ctx, p, cursor, pageCount)
		if err != nil {
			return err
		}
		for _, app := range page.Apps {
			met[app] = true
		}
		seen.Add(page)
		if cursor = next; cursor == 0 {
			return r.node.DoubtApps(ctx, p, began, slices.Collect(maps.Keys(met)))
		}
	}
}

// adoptAll hands every key of the namespaces to the schedule as audited.
func (r *Reconciler) adoptAll(ctx context.Context, seen *schedule.Observed) error {
	var hints []schedule.Hint
	var moving error
	flush := func() error {
		got, err := r.node.Observe(ctx, hints, time.Time{})
		if schedule.IsMoving(err) {
			moving, err = err, nil
		}
		if err != nil {
			return err
		}
		hints = hints[:0]
		seen.Add(got)
		r.WakeFor(got)
		return nil
	}
	err := r.node.ScanKeys(ctx, r.glob(), func(names []string) error {
		for _, name := range names {
			key, err := keys.Parse(name)
			if err != nil || !r.namespaces.Match(key) {
				continue
			}
			hints = append(hints, schedule.Hint{Kind: schedule.Audited, Key: name})
			if len(hints) == schedule.MaxHints {
				if err := flush(); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := flush(); err != nil {
		return err
	}
	return moving
}

// glob returns a pattern that all keys of the namespaces match.
func (r *Reconciler) glob() string {
	if len(r.namespaces) == 1 {
		return r.namespaces[0].Glob()
	}
	return keys.Namespace{}.Glob()
}

// WakeFor wakes the reconciler for what a batch of hints brought.
func (r *Reconciler) WakeFor(seen schedule.Observed) {
	for _, h := range seen.Heads {
		r.Wake(h.Partition, h.Due)
	}
}
