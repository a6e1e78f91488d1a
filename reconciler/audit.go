package reconciler

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	pageCount = 128 // index entries per audit step
	forever   = 100 * 365 * 24 * time.Hour
	// subscribesWithin is the time for which the first audit waits for the first subscription. A subscription needs an
	// audit in any case, and an audit of 20 million timers takes minutes.
	subscribesWithin = 500 * time.Millisecond
	// recordPause is the least time between two reports about scheduled audits.
	recordPause = 10 * time.Second
	// maxDrift limits the lead of the estimate of the server's clock.
	maxDrift = time.Second
)

// Auditor compares the trigger keys with the index.
type Auditor interface {
	ScanDue(ctx context.Context, within, lease time.Duration) (schedule.DueScan, error)
	BeginAudit(ctx context.Context) (*schedule.Audit, error)
	ScanKeys(ctx context.Context, glob string, yield func(names []string) error) error
	Observe(ctx context.Context, hints []schedule.Hint, heard time.Time) (schedule.Observed, error)
	RecordAudit(ctx context.Context, r schedule.AuditReport) error
}

// auditor audits at start, after every gap, and regularly.
type auditor struct {
	server          Server
	node            Auditor
	agenda          *agenda
	coverage        *Coverage
	auditing        *atomic.Bool // an audit is under way
	namespaces      keys.Namespaces
	instance        string
	interval, lease time.Duration // the interval of sweeps; the lease of claims
	log             *slog.Logger
	metrics         Metrics

	asked   *asked
	restore func(context.Context, []schedule.Torn) (schedule.Restored, error)

	judged   bool                      // the last audit knew whether events arrive
	counted  []schedule.NamespaceCount // of the last audit, if it reached all timers
	recorded time.Time                 // time of the last report
	again    string                    // reason of a full audit requested during the present one; "" if none
}

// run audits until ctx ends.
func (a *auditor) run(ctx context.Context) {
	retry := newBackoff(a.log)
	reason := "start"
	select {
	case <-ctx.Done():
		return
	case reason = <-a.coverage.asked:
	case <-time.After(subscribesWithin):
	}
	var complete time.Time // start of the last full audit
	for {
		if a.agenda.isPassive() && (reason == "start" || reason == reasonRegular || reason == reasonUnfollowed) {
			// The timerds that hear the events make the audits; a new subscription requests one.
			select {
			case <-ctx.Done():
				return
			case reason = <-a.coverage.asked:
			case <-time.After(unfollowedInterval):
			}
			continue
		}
		began := time.Now()
		took, err := a.auditFor(ctx, reason)
		if ctx.Err() != nil {
			return
		}
		var wait time.Duration
		var next string
		if err == nil {
			retry.Succeed()
			if reason != reasonUnfollowed {
				complete = began
			}
			wait, next = a.coverage.untilAudit(took, time.Since(complete), a.interval)
		} else {
			wait, next = retry.Fail("audit failed; trying again", err, "reason", reason), reason
			if schedule.IsMoving(err) {
				wait = max(wait, (auditShare-1)*took)
			}
		}
		if a.again != "" {
			wait, next, a.again = 0, a.again, ""
		}
		select {
		case <-ctx.Done():
			return
		case next = <-a.coverage.asked:
		case <-a.coverage.unfollowed:
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

// auditFor makes an audit for a reason and reports its findings.
func (a *auditor) auditFor(ctx context.Context, reason string) (took time.Duration, err error) {
	began := time.Now()
	a.auditing.Store(true)
	seen, err := a.auditAs(ctx, reason)
	a.auditing.Store(false)
	took = time.Since(began)
	if err == nil && ctx.Err() == nil {
		a.report(reason, seen, took)
		a.record(ctx, reason, took)
	}
	return took, err
}

// auditAs makes an audit for a reason. A full audit is the requested one, if there is one.
func (a *auditor) auditAs(ctx context.Context, reason string) (schedule.Observed, error) {
	if reason == reasonUnfollowed {
		return a.auditOnce(ctx, false)
	}
	if id := a.asked.begin(); id != "" {
		return a.auditAsked(ctx, id)
	}
	return a.auditOnce(ctx, true)
}

// report counts an audit that found changes without an event, and logs it.
func (a *auditor) report(reason string, seen schedule.Observed, took time.Duration) {
	known := reason == reasonRegular || reason == reasonUnfollowed
	if seen.Kept > 0 || !known && (seen.Adopted > 0 || seen.Rescheduled > 0 || seen.Cancelled > 0) {
		a.log.Info("audited", "reason", reason, "adopted", seen.Adopted,
			"rescheduled", seen.Rescheduled, "cancelled", seen.Cancelled, "kept_without_key", seen.Kept, "took", took)
	}
	a.metrics.Audited(reason, seen, took)
	signal(a.coverage.audited)
}

// record writes a report of an audit to Redis, for timerd status.
func (a *auditor) record(ctx context.Context, reason string, took time.Duration) {
	usual := reason == reasonRegular || reason == reasonUnfollowed
	if a.counted == nil || usual && time.Since(a.recorded) < recordPause {
		return
	}
	report := schedule.AuditReport{
		Instance: a.instance, At: a.server.Now().Time(), Took: took, Reason: reason, Timers: a.counted,
	}
	a.coverage.report(&report)
	if err := a.node.RecordAudit(ctx, report); err != nil && ctx.Err() == nil {
		a.log.Warn("cannot store the report of an audit, which timerd status shows", "err", err)
	}
	a.recorded = time.Now()
}

// auditOnce makes one audit. If complete is set, it adopts the keys of the namespaces that the index lacks. Once it is
// known whether events arrive, it also removes timers without their key from the index, and forgets apps without
// timers. It skips moving partitions, and returns an error for them at the end.
func (a *auditor) auditOnce(ctx context.Context, complete bool) (schedule.Observed, error) {
	var seen schedule.Observed
	var moving error
	a.counted, a.judged = nil, false
	fault := func(err error) (schedule.Observed, error) { return seen, fmt.Errorf("audit the index: %w", err) }
	audit, err := a.node.BeginAudit(ctx)
	if err != nil {
		return fault(err)
	}
	began := a.server.Now().Add(-maxDrift)
	if complete {
		if err := a.adoptAll(ctx, &seen); schedule.IsMoving(err) {
			moving = err
		} else if err != nil {
			return seen, fmt.Errorf("audit the keys: %w", err)
		}
	}
	if audit == nil {
		return seen, moving // the first subscription requests another audit
	}
	a.judged = true
	audit.CountBy(a.namespaces.Counted())
	found, err := a.node.ScanDue(ctx, forever, a.lease)
	if err != nil {
		return fault(err)
	}
	partitions := make([]keys.Partition, len(found.Heads))
	for i, h := range found.Heads {
		partitions[i] = h.Partition
	}
	got, err := audit.Partitions(ctx, partitions, pageCount, began, func() error { return a.adoptAgain(ctx, &seen) })
	seen.Add(got)
	for i := 0; i < len(found.Leases) && (err == nil || schedule.IsMoving(err)); i++ {
		if failed := audit.CountFirings(ctx, found.Leases[i].Partition); failed != nil {
			err = failed
		}
	}
	if schedule.IsMoving(err) {
		moving = err
	} else if err != nil {
		return fault(err)
	}
	if moving == nil && len(found.Moving) == 0 {
		audit.Complete()
		a.counted = audit.Counted()
	}
	if err := audit.ForgetApps(ctx); err != nil {
		return fault(err)
	}
	return seen, moving
}

// adoptAgain adopts the keys of a gap that was noted during the audit, because they may run out before the audit ends.
// Another audit follows for the rest.
func (a *auditor) adoptAgain(ctx context.Context, seen *schedule.Observed) error {
	select {
	case reason := <-a.coverage.asked:
		if a.again == "" || a.again == reasonTakenOver {
			a.again = reason
		}
		if reason == reasonTakenOver { // their timers are in the schedule
			return nil
		}
		return a.adoptAll(ctx, seen)
	default:
		return nil
	}
}

// adoptAll passes every key of the namespaces to the schedule, as audited.
func (a *auditor) adoptAll(ctx context.Context, seen *schedule.Observed) error {
	var hints []schedule.Hint
	var moving error
	flush := func() error {
		got, err := a.node.Observe(ctx, hints, time.Time{})
		if schedule.IsMoving(err) {
			moving, err = err, nil
		}
		if err != nil {
			return err
		}
		hints = hints[:0]
		seen.Add(got)
		for _, h := range got.Heads {
			a.agenda.wake(h.Partition, h.Due)
		}
		return nil
	}
	err := a.node.ScanKeys(ctx, a.glob(), func(names []string) error {
		for _, name := range names {
			key, err := keys.Parse(name)
			if err != nil || !a.namespaces.Match(key) {
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

// glob returns a pattern that matches all keys of the namespaces.
func (a *auditor) glob() string {
	if len(a.namespaces) == 1 {
		return a.namespaces[0].Glob()
	}
	return keys.Namespace{}.Glob()
}
