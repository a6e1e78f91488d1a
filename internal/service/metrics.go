package service

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/retry"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/notify"
	"github.com/timerd-io/timerd/schedule"
)

// metrics are timerd's metrics, by which a user sees that the guarantees hold.
type metrics struct {
	ends        *streams.Ends   // gets timers that end without an event; may be nil
	counts      *counts         // the counts for heartbeats
	namespaces  keys.Namespaces // the namespaces with series of their own
	firings     []firings       // for each of these namespaces, and for all others
	replanned   prometheus.Counter
	skipped     prometheus.Counter
	adopted     prometheus.Counter
	rescheduled prometheus.Counter
	cancelled   prometheus.Counter
	refused     prometheus.Counter
	setAside    *prometheus.CounterVec
	aside       *prometheus.GaugeVec
	gaps        *prometheus.CounterVec
	audits      *prometheus.CounterVec
	auditTime   prometheus.Histogram
	pending     prometheus.Gauge
	firing      prometheus.Gauge
	held        prometheus.Gauge
	differs     prometheus.Gauge
	holds       prometheus.Gauge
	due         *prometheus.GaugeVec
	complete    prometheus.Gauge
	calls       *prometheus.CounterVec
	drift       *prometheus.GaugeVec
	instances   *prometheus.GaugeVec
	letters     *prometheus.GaugeVec // without labels, so that the value can be absent
}

// firings counts the events of a namespace.
type firings struct {
	name     string
	lateness prometheus.Observer
	fired    *prometheus.CounterVec // by trigger
}

// newMetrics registers timerd's metrics; some have a series for each of the namespaces. observe registers the counts of
// the publisher and the retry consumer.
func newMetrics(r registry, namespaces keys.Namespaces) *metrics {
	m := &metrics{
		counts:     &counts{},
		namespaces: namespaces.Counted(),
		replanned: r.counter("occurrences_replanned_total",
			"Occurrences of repeating timers that were armed while the clock was ahead, and planned again."),
		skipped: r.counter("occurrences_skipped_total",
			"Occurrences of repeating timers that were missed and never fire."),
		adopted:     r.counter("adopted_total", "Plain keys with a TTL that entered the schedule."),
		rescheduled: r.counter("rescheduled_total", "Pending timers whose due time changed."),
		cancelled:   r.counter("cancelled_total", "Pending timers whose key was deleted or lost its TTL."),
		refused:     r.counter("refused_total", "Keys in a configured namespace that are too long to be timers."),
		setAside: r.counters("set_aside_total",
			"Timers, events of their keys, or retry requests, that wait without stopping others, by reason.", "reason"),
		aside: r.gauges("set_aside_timers", "Timers set aside at the last sweep, by reason.", "reason"),
		gaps: r.counters("gaps_total",
			"Times in which keyspace events may have been missed, by reason; each is followed by an audit.", "reason"),
		audits: r.counters("audits_total", "Audits of all keys and timers, by reason.", "reason"),
		auditTime: r.histogram("audit_seconds", "How long an audit took.",
			prometheus.ExponentialBuckets(.001, 4, 10)),
		pending: r.gauge("pending_timers", "Timers in the schedule that are not due, at the last sweep."),
		firing:  r.gauge("firing_timers", "Firings that are owed or claimed by any timerd, at the last sweep."),
		held:    r.gauge("held_timers", "Timers that are due and held, at the last sweep."),
		differs: r.gauge("account_difference",
			"Timers by which the account differs, of the servers whose first timerd this is."),
		holds: r.gauge("holds", "Namespaces on hold."),
		due: r.gauges("due_timers",
			"Pending timers of all namespaces, by the time within which they become due.", "within"),
		complete: r.gauge("keyspace_events_complete",
			"1 while the keyspace events that adoption needs arrive, else 0."),
		calls: r.counters("library_calls_total",
			"Calls of the function library, by any client, that set or cancelled a timer: the same on each timerd.",
			"function"),
		drift: r.gauges("config_drift",
			"1 for a setting that the living timerds of this schedule do not have in common, else 0.", "setting"),
		instances: r.gauges("instances_alive", "Living timerds of this schedule, by version.", "version"),
		letters: r.gauges("dead_letters",
			"Messages in the stream of dead letters; no value while NATS does not answer."),
	}
	m.firings = newFirings(r, m.namespaces)
	m.startAtZero()
	return m
}

// observeReadiness exports the results of the checks at each scrape. Call it after the last add.
func observeReadiness(r registry, ready *readiness) {
	for _, c := range ready.checks {
		r.asked("ready", "1 while the check of /readyz passes, else 0.", prometheus.Labels{"check": c.name},
			func() float64 { return oneIf(ready.passes(c.name)) })
	}
}

// newFirings registers the counts for each of the namespaces, and for all others.
func newFirings(r registry, namespaces keys.Namespaces) []firings {
	fired := r.own.NewCounterVec(prometheus.CounterOpts{
		Name: "fired_total", Help: "Events published and acknowledged by JetStream, by namespace and trigger.",
	}, []string{"namespace", "trigger"})
	lateness := r.own.NewHistogramVec(prometheus.HistogramOpts{
		Name: "lateness_seconds", Help: "How long after its due time an event was published, by namespace.",
		Buckets: []float64{.0005, .001, .002, .004, .008, .016, .032, .064, .125, .25, .5, 1, 2, 5, 10, 30, 60, 300,
			3600},
	}, []string{"namespace"})
	names := []string{}
	for _, n := range namespaces {
		names = append(names, n.String())
	}
	var all []firings
	for _, name := range append(names, keys.Other) {
		all = append(all, firings{name, lateness.WithLabelValues(name),
			fired.MustCurryWith(prometheus.Labels{"namespace": name})})
	}
	return all
}

// firingsOf returns the counts for a timer.
func (m *metrics) firingsOf(k keys.Key) firings {
	if at := m.namespaces.Find(k); at >= 0 {
		return m.firings[at]
	}
	return m.firings[len(m.namespaces)]
}

// startAtZero exports counters with known labels before their first count: rate() does not see the first increment of a
// counter that was not there.
func (m *metrics) startAtZero() {
	for _, f := range m.firings {
		counting(f.fired, schedule.TriggerDeadline, schedule.TriggerExpired, schedule.TriggerSweep,
			schedule.TriggerReclaim)
	}
	counting(m.setAside, query.ParkedRights, query.ParkedRefused, query.ParkedGuard, reasonRetry)
	m.setAsideTimers(schedule.ParkedCounts{})
	for _, h := range horizons() {
		m.due.WithLabelValues(h.name)
	}
	counting(m.calls, callSet, callCancel)
}

// observe counts the work of the publisher and the retry consumer.
func (m *metrics) observe(r registry, p *notify.Publisher, c *retry.Consumer) {
	r.asked("inflight_firings", "Firings claimed by this process and not yet settled.", nil,
		func() float64 { return float64(p.InFlight()) })
	p.Metrics = newPublished(m, r)
	c.OnRetried = r.counter("retries_total", "Timers set again because a consumer asked for it.").Inc
	c.OnPostponed = r.counter("postponed_total",
		"Timers set again as the same attempt because a consumer asked for it.").Inc
	c.OnIgnored = r.counter("retry_duplicates_total",
		"Retry requests whose timer had been set again before, and that changed nothing.").Inc
	c.OnBuried = counting(
		r.counters("dead_letters_total",
			"Retry requests that became dead letters: attempts exhausted, or request malformed.", "reason"),
		retry.DeadExhausted, retry.DeadMalformed)
	c.OnSetAside = m.setAside.WithLabelValues(reasonRetry).Inc
}

// observed counts the results of hints or of an audit.
func (m *metrics) observed(seen schedule.Observed) {
	m.adopted.Add(float64(seen.Adopted))
	m.rescheduled.Add(float64(seen.Rescheduled))
	m.cancelled.Add(float64(seen.Cancelled))
}

// setAsideTimers sets the number of timers set aside.
func (m *metrics) setAsideTimers(n schedule.ParkedCounts) {
	m.aside.WithLabelValues(string(query.ParkedRights)).Set(float64(n.Rights))
	m.aside.WithLabelValues(string(query.ParkedRefused)).Set(float64(n.Refused))
	m.aside.WithLabelValues(string(query.ParkedGuard)).Set(float64(n.Guard))
}

// members exports the living timerds, and the settings on which they disagree.
func (m *metrics) members(settings map[string]string, all []query.Member) {
	m.instances.Reset()
	for _, v := range status.Versions(all) {
		m.instances.WithLabelValues(v.Value).Set(float64(len(v.Instances)))
	}
	for name := range settings {
		m.drift.WithLabelValues(name).Set(0)
	}
	for _, d := range status.Differences(all) {
		if _, ok := settings[d.Setting]; ok {
			m.drift.WithLabelValues(d.Setting).Set(1)
		}
	}
}

// setComplete sets whether the events needed for adoption arrive.
func (m *metrics) setComplete(complete bool) { m.complete.Set(oneIf(complete)) }
