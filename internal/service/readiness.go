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

// How often readiness is checked, and how long a check may take. Together they
// bound how long a failure or a recovery goes unnoticed.
const (
	checkInterval = time.Second
	checkTimeout  = 2 * time.Second
	// recheckInterval is how often a check that fails is run.
	recheckInterval = 100 * time.Millisecond
	// checkStale is the age from which on a result counts no more: the check hangs, which is no good sign.
	checkStale = checkInterval + checkTimeout + time.Second
	// startGrace is how long a part may take to get going before that is logged.
	startGrace = 5 * time.Second
	// mostWrong is how many bytes of a reason others are told.
	mostWrong = 500
)

// errUnchecked is a check's result until it has run.
var errUnchecked = errors.New("not checked yet")

// readiness runs named checks over and over and remembers what each said last, so that asking it costs nothing and
// blocks on nothing. Its methods may be called concurrently once run was called.
type readiness struct {
	log    *slog.Logger
	checks []*check
	// besides finds what is wrong with the installation; nil for nothing.
	besides func() diag.Findings
	clients diag.Clients // how the commands in fixes reach the servers
	// tell takes the checks that fail for a reason of their own, whenever one has run; nil for nobody.
	tell func([]schedule.Wrong)

	mu sync.Mutex // guards what the checks said
}

// check asks whether one part of timerd works.
type check struct {
	name  string
	after []string // checks without which this one cannot pass
	// ask returns nil, or what is wrong in words for an operator, and ends when its context does.
	ask func(context.Context) error
	// lesser says that timerd fires and hears while it fails: /readyz stays 200.
	lesser bool

	err    error // what it said last
	at     time.Time
	grace  time.Time // until when a failure is not worth a line
	logged bool      // err was logged

	resumed bool // the process went on after a stop: what passes at once may fail a moment later
}

// add adds a check, after others without which it cannot pass: while they fail, they are the cause. Call it before run.
func (r *readiness) add(name string, ask func(context.Context) error, after ...string) *check {
	now := time.Now()
	c := &check{name: name, after: after, ask: ask, err: errUnchecked, at: now, grace: now.Add(startGrace)}
	r.checks = append(r.checks, c)
	return c
}

// run runs the checks until ctx ends. It logs each failure and each recovery
// once, and nothing of the first moments after add.
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
	if now.Sub(c.at) > checkStale { // this process was stopped: what it finds within some seconds comes of that
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

// wrong returns the checks that fail, without those that wait for another one and those of the first moments. r.mu is held.
func (r *readiness) wrong() (all []schedule.Wrong) {
	failing := map[string]bool{}
	for _, c := range r.checks {
		waits := slices.ContainsFunc(c.after, func(name string) bool { return failing[name] })
		if failing[c.name] = c.err != nil; c.logged && c.err != nil && !waits {
			text := diag.Of(c.name, c.err, "").Text
			all = append(all, schedule.Wrong{Check: c.name, Text: strings.ToValidUTF8(text[:min(len(text), mostWrong)], "")})
		}
	}
	return all
}

// passes tells whether a check passes by what it said last.
func (r *readiness) passes(name string) bool {
	return !slices.ContainsFunc(r.own(), func(f diag.Finding) bool { return f.Check == name && f.Level != diag.OK })
}

// own returns what each check said last, in the order they were added.
func (r *readiness) own() (all diag.Findings) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.checks {
		err := c.err
		if age := time.Since(c.at); age > checkStale {
			err = fmt.Errorf("the check has not answered for %v", age.Round(time.Second))
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

// state returns the lines of /readyz: the checks of this timerd, and then, as warnings, what else is wrong with the installation.
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
