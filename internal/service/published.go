package service

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/notify"
	"github.com/timerd-io/timerd/schedule"
)

// published counts the publisher's work; it is a notify.Metrics.
type published struct {
	all                              *metrics
	duplicates                       prometheus.Counter
	settled, released, lost, guarded prometheus.Counter
	withoutPayload, failed, tooLate  *prometheus.CounterVec
}

func newPublished(all *metrics, r registry) *published {
	p := &published{
		all: all,
		duplicates: r.counter("duplicates_total",
			"Events that JetStream had already, from an earlier try or another timerd, and dropped."),
		settled: r.counter("settled_total",
			"Firings taken out of the schedule: acknowledged, too late to fire, or stopped by a guard."),
		released: r.counter("released_total", "Claims given back because the event could not be published in time."),
		lost: r.counter("stream_lost_total",
			"Events acknowledged to this process by NATS and lost since, at least."),
		withoutPayload: r.counters("fired_without_payload_total",
			"Events whose payload was missing or too large when they were claimed, by status.", "status"),
		failed: r.counters("publish_failures_total", "Tries to publish an event that failed, by class.", "class"),
		tooLate: r.counters("late_total",
			"Timers that were claimed too late to fire, by outcome: dead letters, or dropped.", "action"),
		guarded: r.counter("guarded_total", "Timers that did not fire because of their guards."),
	}
	counting(p.withoutPayload, event.StatusMissing, event.StatusTooLarge)
	counting(p.failed, notify.FailureDisconnected, notify.FailureTimeout, notify.FailureNoStream, notify.FailureFull,
		notify.FailureUnavailable, notify.FailureRefused, notify.FailureTooLarge)
	counting(p.tooLate, notify.LateDead, notify.LateDrop)
	return p
}

func (p *published) Fired(f *schedule.Firing, lateness time.Duration, duplicate bool) {
	counts := p.all.firingsOf(f.Key)
	counts.fired.WithLabelValues(string(f.Trigger)).Inc()
	counts.lateness.Observe(lateness.Seconds())
	p.all.counts.fired(counts.name, lateness)
	switch f.Status {
	case schedule.PayloadMissing:
		p.withoutPayload.WithLabelValues(event.StatusMissing).Inc()
	case schedule.PayloadTooLarge:
		p.withoutPayload.WithLabelValues(event.StatusTooLarge).Inc()
	}
	if duplicate {
		p.duplicates.Inc()
	}
}

func (p *published) Failed(class notify.Failure) { p.failed.WithLabelValues(string(class)).Inc() }

func (p *published) Settled(n int) { p.settled.Add(float64(n)) }

func (p *published) Released(n int) { p.released.Add(float64(n)) }

func (p *published) SetAside(_ *schedule.Firing, kind schedule.OutcomeKind) {
	reason := query.ParkedRefused
	if kind == schedule.OutcomeUnread {
		reason = query.ParkedGuard
	}
	p.all.setAside.WithLabelValues(string(reason)).Inc()
}

func (p *published) Late(f *schedule.Firing, action notify.LateAction) {
	p.tooLate.WithLabelValues(string(action)).Inc()
	if action == notify.LateDrop {
		p.all.ends.Add(endOf(event.EntryDropped, f))
	}
}

// endOf returns the entry of a firing's end without an event.
func endOf(kind event.EntryKind, f *schedule.Firing) event.Entry {
	return event.Entry{Kind: kind, Subjects: []string{keys.EncodeText(f.Key.String())}, Due: f.Due.Time(),
		Attempt: f.Attempt}
}

func (p *published) Guarded(f *schedule.Firing) {
	p.guarded.Inc()
	e := endOf(event.EntryGuarded, f)
	if guard := keys.EncodeText(f.Refusal.Guard); f.Refusal.Missing {
		e.GuardIf = guard
	} else {
		e.GuardUnless = guard
	}
	p.all.ends.Add(e)
}

func (p *published) Lost(n uint64) { p.lost.Add(float64(n)) }
