package reconciler

import (
	"context"
	"fmt"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	pageCount = 128 // index entries per audit step
	forever   = 100 * 365 * 24 * time.Hour

	// auditInterval is how often everything is audited though no gap was noticed.
	auditInterval = 10 * time.Minute
	// auditShare is the part of the time that audits may take at most while they
	// stand in for events, or follow slots that move one after the other.
	auditShare = 10

	// reasonTakenOver is the reason of an audit of partitions that came from another server of a cluster.
	reasonTakenOver = "slots moved"
)

// audit audits at start, after every gap, and regularly.
func (r *Reconciler) audit(ctx context.Context) {
	retry := r.newBackoff()
	reason := "start"
	for {
		began := time.Now()
		r.auditing.Store(true)
		seen, err := r.auditOnce(ctx)
		r.auditing.Store(false)
		took := time.Since(began)
		if ctx.Err() != nil {
			return
		}
		var wait time.Duration
		next := "regular"
		if err == nil {
			retry.Succeed()
			r.report(reason, seen, took)
			wait = r.untilAudit(took)
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
		case <-time.After(wait):
		}
		if next == reasonTakenOver && !backoff.Sleep(ctx, (auditShare-1)*took) {
			return
		}
		reason = next
	}
}

// untilAudit returns how long to wait for the next audit after one that took some time.
func (r *Reconciler) untilAudit(took time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.incomplete {
		return max(r.SweepInterval, (auditShare-1)*took)
	}
	return auditInterval
}

// report tells of an audit.
func (r *Reconciler) report(reason string, seen schedule.Observed, took time.Duration) {
	if seen.Kept > 0 || reason != "regular" && (seen.Adopted > 0 || seen.Rescheduled > 0 || seen.Cancelled > 0) {
		r.Logger.Info("audited", "reason", reason, "adopted", seen.Adopted,
			"rescheduled", seen.Rescheduled, "cancelled", seen.Cancelled, "kept_without_key", seen.Kept, "took", took)
	}
	r.OnAudit(reason, seen, took)
}

// auditOnce adopts the keys of the namespaces that the index lacks, and takes out of the index what has lost its key.
// It goes on past partitions that are moving, and returns an error for them at the end.
func (r *Reconciler) auditOnce(ctx context.Context) (schedule.Observed, error) {
	var seen schedule.Observed
	audit, err := r.node.BeginAudit(ctx)
	if err != nil {
		return seen, fmt.Errorf("audit the index: %w", err)
	}
	var moving error
	if err := r.adoptAll(ctx, &seen); schedule.IsMoving(err) {
		moving = err
	} else if err != nil {
		return seen, fmt.Errorf("audit the keys: %w", err)
	}
	found, err := r.node.ScanDue(ctx, forever, r.Lease)
	if err != nil {
		return seen, fmt.Errorf("audit the index: %w", err)
	}
	for _, h := range found.Heads {
		err := auditPartition(ctx, audit, h.Partition, &seen)
		if schedule.IsMoving(err) {
			moving = err
		} else if err != nil {
			return seen, fmt.Errorf("audit the index: %w", err)
		}
	}
	if moving == nil && len(found.Moving) == 0 {
		audit.Complete()
	}
	return seen, moving
}

func auditPartition(ctx context.Context, audit *schedule.Audit, p keys.Partition, seen *schedule.Observed) error {
	for cursor := uint64(0); ; {
		next, page, err := audit.Page(ctx, p, cursor, pageCount)
		if err != nil {
			return err
		}
		seen.Add(page)
		if cursor = next; cursor == 0 {
			return nil
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
