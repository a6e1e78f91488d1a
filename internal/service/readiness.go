package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/schedule"
)

// checkInterval and checkTimeout are the interval of the checks and the limit of each. Together they bound the time
// until a failure or a recovery is noticed.
const (
	checkInterval = time.Second
	checkTimeout  = 2 * time.Second
	// recheckInterval is the interval of a failing check.
	recheckInterval = 100 * time.Millisecond
	// checkStale is the age at which a result expires: the check hangs.
	checkStale = checkInterval + checkTimeout + time.Second
	// startGrace is the time for a part to start before a failure is logged.
	startGrace = 5 * time.Second
	// mostWrong limits the bytes of a reason in heartbeats.
	mostWrong = 500
)

// errUnchecked is a check's result until it has run.
var errUnchecked = errors.New("not checked yet")

// readiness runs named checks over and over and keeps the last result of each, so that reading it costs nothing and
// never blocks. Its methods may be called concurrently once run was called.
type readiness struct {
	log    *slog.Logger
	checks []*check
	// besides returns the problems of the installation; may be nil.
	besides func() diag.Findings
	clients diag.Clients // for the commands in fixes
	// tell gets the checks that fail for a reason of their own, after each run of a check; may be nil.
	tell func([]schedule.Wrong)

	mu sync.Mutex // guards the results of the checks
}

// check tests one part of timerd.
type check struct {
	name  string
	after []string // checks without which this one cannot pass
	// ask returns nil, or the fault in words for an operator, and ends when its context does.
	ask func(context.Context) error
	// lesser means that timerd fires and receives events even while the check fails: /readyz stays 200.
	lesser bool

	err    error // the last result
	at     time.Time
	grace  time.Time // until then failures are not logged
	logged bool      // err was logged

	resumed bool // the process went on after a stop: a check that passes at once may fail a moment later
}

// add adds a check, which cannot pass without the checks in after: while they fail, they are the cause. Call it before
// run.
func (r *readiness) add(name string, ask func(context.Context) error, after ...string) *check {
	now := time.Now()
	c := &check{name: name, after: after, ask: ask, err: errUnchecked, at: now, grace: now.Add(startGrace)}
	r.checks = append(r.checks, c)
	return c
}

// run runs the checks until ctx ends. It logs each failure and each recovery once, but no failure within startGrace of
// add.
func (r *readiness) run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, c := range r.checks {
		wg.Go(func() { r.repeat(ctx, c) })
	}
	wg.Wait()
}

func (r *readiness) repeat(ctx context.Context, c *check) {
	for {
		within, cancel := context.WithTimeout(ctx, checkTimeout)
		err := c.ask(within)
		cancel()
		if ctx.Err() != nil {
			return
		}
		r.note(c, err)
		wait := checkInterval
		if err != nil {
			wait = recheckInterval
		}
		if !backoff.Sleep(ctx, wait) {
			return
		}
	}
}

func (r *readiness) note(c *check, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Sub(c.at) > checkStale { // this process was stopped: failures of the next seconds are consequences
		c.grace, c.resumed = now.Add(startGrace), true
	}
	switch {
	case err != nil && !c.logged && now.After(c.grace):
		r.log.Warn("not ready", "check", c.name, "err", err)
		c.logged = true
	case err == nil && c.logged:
		r.log.Info("ready again", "check", c.name)
		c.logged = false
	case err == nil && !c.resumed:
		c.grace = now
	}
	c.err, c.at = err, now
	if r.tell != nil {
		r.tell(r.wrong())
	}
}

// wrong returns the failing checks, except failures within startGrace or caused by another check. The caller holds
// r.mu.
func (r *readiness) wrong() (all []schedule.Wrong) {
	failing := map[string]bool{}
	for _, c := range r.checks {
		waits := slices.ContainsFunc(c.after, func(name string) bool { return failing[name] })
		if failing[c.name] = c.err != nil; c.logged && c.err != nil && !waits {
			text := diag.Of(c.name, c.err, "").Text
			all = append(all, schedule.Wrong{Check: c.name, Text: strings.ToValidUTF8(text[:min(len(text), mostWrong)],
				"")})
		}
	}
	return all
}

// passes reports whether the last result of a check was a pass.
func (r *readiness) passes(name string) bool {
	return !slices.ContainsFunc(r.own(), func(f diag.Finding) bool { return f.Check == name && f.Level != diag.OK })
}

// own returns the last result of each check, in the order of add.
func (r *readiness) own() (all diag.Findings) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.checks {
		err := c.err
		if age := time.Since(c.at); age > checkStale {
			err = fmt.Errorf("no result of the check for %v", age.Round(time.Second))
		}
		cause := slices.IndexFunc(c.after, func(name string) bool { return all.Has(diag.Fail, name) })
		f := diag.Finding{Level: diag.OK, Check: c.name, Text: "ok"}
		switch {
		case err == nil:
		case cause >= 0:
			f = diag.Finding{Level: diag.Fail, Check: c.name, Text: "it waits for " + c.after[cause]}
		default:
			f = diag.Of(c.name, err, "")
		}
		if c.lesser && f.Level == diag.Fail {
			f.Level, f.Text = diag.Warn, "failed: "+f.Text
		}
		all.Add(f)
	}
	return all
}

// state returns the lines of /readyz: the checks of this timerd, and then, as warnings, other problems of the
// installation.
func (r *readiness) state() diag.Findings {
	all := r.own()
	if r.besides != nil {
		tells := status.ReadyChecks()
		own := slices.Clone(all)
		for _, f := range r.besides() {
			if f.Level = diag.Warn; !own.Has(diag.Fail, tells[f.Check]) && !own.Has(diag.Warn, tells[f.Check]) {
				all.Add(f)
			}
		}
	}
	r.clients.Address(all)
	return all
}
