package service

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/status"
)

const (
	// problemsInterval is the interval of the checks. With reportTimeout, a problem shows within 5 s.
	problemsInterval = 2 * time.Second
	// reportTimeout bounds a report, and so the wait of each console page.
	reportTimeout = 2 * time.Second
)

// report makes timerd status's report. If NATS is known to be away, it does not wait for it, and reports from.NoNATS.
func report(ctx context.Context, from status.Sources) *status.Report {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	if !from.JetStream.Conn().IsConnected() {
		from.JetStream = nil
	}
	return from.Gather(ctx)
}

// natsAway returns the finding for a missing connection to NATS.
func natsAway(conf config.NATS) diag.Finding {
	return diag.Finding{Text: "NATS at " + conf.Shown + " is away",
		Fix: "bring the NATS server back: timers that are due wait in Redis, and none is lost"}
}

// connected returns a problem while there is no connection to NATS.
func connected(js jetstream.JetStream, away diag.Finding) error {
	if js.Conn().IsConnected() {
		return nil
	}
	return &diag.Fault{What: away.Text, Remedy: away.Fix}
}

// problems has the problems of the installation, as in timerd status, for /readyz and the metrics.
type problems struct {
	from   status.Sources
	counts *counts // gets this timerd's part, for other timerds' reports
	gauge  *prometheus.GaugeVec
	// overdue and overdueAge have no labels, so that the value can be absent.
	overdue, overdueAge *prometheus.GaugeVec

	mu   sync.Mutex
	last *status.Report
}

// newProblems returns problems read from these sources.
func newProblems(from status.Sources, all *nodes, r registry) *problems {
	from.Aside = all.setAside
	p := &problems{
		from: from, counts: all.metrics.counts, gauge: r.gauges("problem",
			"1 while timerd status finds a problem by this check, else 0.", "check"),
		overdue: r.gauges("overdue_timers",
			"Timers of all servers that have been due and not settled for longer than the lease and two sweeps; no "+
				"value while Redis does not answer."),
		overdueAge: r.gauges("overdue_seconds",
			"How long ago the oldest of them was due, 0 for none; no value while Redis does not answer."),
	}
	p.note(&status.Report{})
	return p
}

// run makes reports until ctx ends.
func (p *problems) run(ctx context.Context) {
	for {
		found := report(ctx, p.from)
		if ctx.Err() != nil {
			return
		}
		p.note(found)
		if !backoff.Sleep(ctx, problemsInterval) {
			return
		}
	}
}

// note keeps a report's problems.
func (p *problems) note(r *status.Report) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = r
	p.counts.setDeaf(r.Lacking)
	p.noteOverdue(r)
	for _, check := range status.Checks() {
		p.gauge.WithLabelValues(check).Set(oneIf(r.Problems.Has(diag.Fail, check) || r.Problems.Has(diag.Warn, check)))
	}
}

// lacks returns an error with the rights that timerd lacks in Redis; nil if it has all rights that firing needs.
func (p *problems) lacks() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []error
	for _, f := range p.last.Lacks {
		all = append(all, &diag.Fault{What: f.Text, Remedy: f.Fix})
	}
	if len(all) == 1 {
		return all[0]
	}
	return errors.Join(all...)
}

// found returns the problems.
func (p *problems) found() diag.Findings {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last.Problems
}

// noteOverdue exports the number and the age of overdue timers.
func (p *problems) noteOverdue(r *status.Report) {
	if r.Redis == nil {
		p.overdue.Reset()
		p.overdueAge.Reset()
		return
	}
	timers, age, drains := 0.0, 0.0, false
	if o := r.Redis.Overdue; o != nil {
		timers, age, drains = float64(o.Timers), o.Age().Seconds(), o.Drains()
	}
	p.counts.setDrains(drains)
	p.overdue.WithLabelValues().Set(timers)
	p.overdueAge.WithLabelValues().Set(age)
}
