package service

import (
	"log/slog"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// nodeMetrics counts the work on one node; it is a reconciler.Metrics and a listener.Metrics.
type nodeMetrics struct {
	metrics *metrics
	taken   *takeovers
	aside   *parked
	node    *servedNode
	update  func(change func()) // changes the node, and exports it
	log     *slog.Logger
}

func (m *nodeMetrics) Observed(seen schedule.Observed) {
	m.metrics.observed(seen)
	m.aside.note(seen.Denied, seen.DeniedKey)
}

func (m *nodeMetrics) Set() { m.metrics.calls.WithLabelValues(callSet).Inc() }

func (m *nodeMetrics) Refused(key string, err error) {
	m.metrics.refused.Inc()
	m.log.Warn("not a timer", "key", keys.Abbreviate(key), "err", err)
}

func (m *nodeMetrics) Audited(reason string, seen schedule.Observed, took time.Duration) {
	m.metrics.audits.WithLabelValues(reason).Inc()
	m.metrics.auditTime.Observe(took.Seconds())
	m.metrics.observed(seen)
}

func (m *nodeMetrics) Swept(found schedule.DueScan) {
	m.update(func() { m.node.counts, m.node.scanned = found, true })
}

func (m *nodeMetrics) Claimed(claimed *schedule.ClaimResult) {
	m.metrics.rescheduled.Add(float64(claimed.Rescheduled))
	m.metrics.cancelled.Add(float64(claimed.Cancelled))
	m.aside.note(claimed.Parked, claimed.ParkedKey)
	m.taken.note(claimed)
}

func (m *nodeMetrics) Vanished(missing int64) {
	m.update(func() { m.node.vanished, m.node.vanishedAt = missing, time.Now() })
}

func (m *nodeMetrics) Replanned(n int) { m.metrics.replanned.Add(float64(n)) }

func (m *nodeMetrics) AccountDiffers(timers int64) { m.update(func() { m.node.differs = timers }) }

func (m *nodeMetrics) Unanswered(silent time.Duration) { m.metrics.counts.noteStop(silent, false) }

func (m *nodeMetrics) Gap(reason string) {
	m.metrics.gaps.WithLabelValues(reason).Inc()
	m.metrics.counts.add(func(c *schedule.Counts) { c.Gaps++ })
}

func (m *nodeMetrics) Complete(complete bool) { m.update(func() { m.node.incomplete = !complete }) }
