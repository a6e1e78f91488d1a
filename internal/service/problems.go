package service

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/rights"
	"github.com/timerd-io/timerd/internal/status"
)

const (
	// problemsInterval is how often it is asked what is wrong. With reportTimeout it is told within 5 s.
	problemsInterval = 2 * time.Second
	// reportTimeout bounds the question, and so what every page of the console waits for.
	reportTimeout = 2 * time.Second
)

// report asks what timerd status tells, without waiting for a NATS that is known to be away: from.NoNATS is told then.
func report(ctx context.Context, from status.Sources) *status.Report {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	if !from.JetStream.Conn().IsConnected() {
		from.JetStream = nil
	}
	return from.Gather(ctx)
}

// natsAway returns what is told while there is no connection to NATS.
func natsAway(conf config.NATS) diag.Finding {
	return diag.Finding{Text: "NATS at " + conf.Shown + " is away", Fix: "bring the NATS server back: timers that are due wait in Redis, and none is lost"}
}

// connected returns a problem while there is no connection to NATS.
func connected(js jetstream.JetStream, away diag.Finding) error {
	if js.Conn().IsConnected() {
		return nil
	}
	return &diag.Fault{What: away.Text, Remedy: away.Fix}
}

// problems knows what is wrong with the installation, as timerd status tells it, for /readyz and the metrics.
type problems struct {
	from  status.Sources
	aside func() diag.Findings
	deaf  func([]rights.Lacking) // takes what the user lacks
	gauge *prometheus.GaugeVec

	mu     sync.Mutex
	found  diag.Findings
	others diag.Findings // those of found that concern other users of Redis
}

// newProblems returns problems from where they are told.
func newProblems(from status.Sources, all *nodes, r registry) *problems {
	p := &problems{
		from:  from,
		aside: all.setAside, deaf: all.metrics.counts.setDeaf, gauge: r.gauges("problem", "1 while timerd status finds a problem by this check, else 0.", "check"),
	}
	p.note(&status.Report{})
	return p
}

// run asks again and again until ctx ends.
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

// note takes what is wrong.
func (p *problems) note(r *status.Report) {
	found := slices.Concat(r.Problems, p.aside())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.found, p.others = found, nil
	if r.Redis != nil {
		p.others = r.Redis.Deaf
		p.deaf(r.Redis.Lacking)
	}
	for _, check := range diag.Checks() {
		p.gauge.WithLabelValues(check).Set(oneIf(found.Has(diag.Fail, check) || found.Has(diag.Warn, check)))
	}
}

// ownRights tells whether this timerd cannot fire for lack of a right. p.mu is held.
func (p *problems) ownRights(f diag.Finding) bool {
	return f.Check == diag.CheckRights && f.Level == diag.Fail && !slices.Contains(p.others, f)
}

// lacks returns which rights timerd lacks in Redis; nil if it has all that it fires by.
func (p *problems) lacks() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []error
	for _, f := range p.found {
		if p.ownRights(f) {
			all = append(all, &diag.Fault{What: f.Text, Remedy: f.Fix})
		}
	}
	if len(all) == 1 {
		return all[0]
	}
	return errors.Join(all...)
}

// besides returns what the checks of /readyz do not tell.
func (p *problems) besides() diag.Findings {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(p.found), func(f diag.Finding) bool {
		switch f.Check {
		case diag.CheckRights:
			return p.ownRights(f) // see lacks
		case diag.CheckCluster, diag.CheckNATS, diag.CheckUnattended, diag.CheckAudits, diag.CheckOwed, diag.CheckLetters:
			return true
		}
		return false
	})
}
