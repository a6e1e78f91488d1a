package reconciler

import (
	"context"
	"fmt"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	scanCount = 1000 // keys per SCAN step: about half a millisecond of Redis's time
	pageCount = 128  // index entries per audit step
	forever   = 100 * 365 * 24 * time.Hour

	// auditShare is the part of the time that audits may take at most while they
	// stand in for events, or follow slots that move one after the other.
	auditShare = 10

	// reasonTakenOver is the reason of an audit of partitions that came from another
	// server of a cluster.
	reasonTakenOver = "slots moved"
)

// audit audits at start, after every gap, and regularly.
func (r *Reconciler) audit(ctx context.Context) {
	reason, backoff := "start", minBackoff
	for {
		began := time.Now()
		r.auditing.Store(true)
		seen, err := r.auditOnce(ctx)
		r.auditing.Store(false)
		took := time.Since(began)
		if ctx.Err() != nil {
			return
		}
		wait := backoff
		if schedule.IsMoving(err) {
			wait = max(backoff, (auditShare-1)*took)
		}
		if err == nil {
			backoff = minBackoff
			r.mu.Lock()
			incomplete := r.incomplete
			r.mu.Unlock()
			wait = r.AuditInterval
			if incomplete {
				wait = max(r.SweepInterval, (auditShare-1)*took)
			}
			if reason != "regular" && (seen.Adopted > 0 || seen.Rescheduled > 0 || seen.Cancelled > 0) {
				r.Logger.Info("audited", "reason", reason, "adopted", seen.Adopted,
					"rescheduled", seen.Rescheduled, "cancelled", seen.Cancelled, "took", took)
			}
			r.OnAudit(reason, seen, took)
		} else {
			if backoff == minBackoff {
				r.Logger.Warn("audit failed; trying again", "err", err, "reason", reason, "delay", backoff)
			}
			backoff = min(2*backoff, maxBackoff)
		}
		next := reason
		if err == nil {
			next = "regular"
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case next = <-r.gaps:
			timer.Stop()
		case <-timer.C:
		}
		if next == reasonTakenOver && !r.pause(ctx, (auditShare-1)*took) {
			return
		}
		reason = next
	}
}

// pause waits, and tells whether ctx goes on.
func (r *Reconciler) pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// auditOnce adopts the keys of the namespaces that the index lacks, and takes
// out of the index what has lost its key. It goes on past partitions that are
// moving, and returns an error for them at the end.
func (r *Reconciler) auditOnce(ctx context.Context) (schedule.Observed, error) {
	var seen schedule.Observed
	var moving error
	if err := r.adoptAll(ctx, &seen); schedule.IsMoving(err) {
		moving = err
	} else if err != nil {
		return seen, fmt.Errorf("audit the keys: %w", err)
	}
	mayEvict, err := r.schedule.MayEvict(ctx)
	if err != nil {
		return seen, fmt.Errorf("audit the index: %w", err)
	}
	found, err := r.schedule.Survey(ctx, forever, r.Lease)
	if err != nil {
		return seen, fmt.Errorf("audit the index: %w", err)
	}
	for _, h := range found.Heads {
		err := r.auditPartition(ctx, h.Partition, mayEvict, &seen)
		if schedule.IsMoving(err) {
			moving = err
		} else if err != nil {
			return seen, fmt.Errorf("audit the index: %w", err)
		}
	}
	return seen, moving
}

func (r *Reconciler) auditPartition(ctx context.Context, p keys.Partition, mayEvict bool, seen *schedule.Observed) error {
	for cursor := uint64(0); ; {
		next, page, err := r.schedule.AuditPage(ctx, p, cursor, pageCount, mayEvict)
		if err != nil {
			return err
		}
		seen.Add(page)
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// adoptAll hands every key of the namespaces to the schedule as touched.
func (r *Reconciler) adoptAll(ctx context.Context, seen *schedule.Observed) error {
	var hints []schedule.Hint
	var moving error
	flush := func() error {
		got, err := r.schedule.Observe(ctx, hints, r.since.Load(), 0)
		if schedule.IsMoving(err) {
			moving, err = err, nil
		}
		if err != nil {
			return err
		}
		hints = hints[:0]
		seen.Add(got)
		r.Observed(got)
		return nil
	}
	for cursor := uint64(0); ; {
		found, next, err := r.rdb.Scan(ctx, cursor, r.glob(), scanCount).Result()
		if err != nil {
			return err
		}
		for _, name := range found {
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
		if cursor = next; cursor == 0 {
			if err := flush(); err != nil {
				return err
			}
			return moving
		}
	}
}

// glob returns a pattern that all keys of the namespaces match.
func (r *Reconciler) glob() string {
	if len(r.namespaces) == 1 {
		return r.namespaces[0].Glob()
	}
	return keys.Namespace{}.Glob()
}

// Observed wakes the reconciler for what a batch of hints brought.
func (r *Reconciler) Observed(seen schedule.Observed) {
	for _, h := range seen.Heads {
		r.Wake(h.Partition, h.Due)
	}
}
