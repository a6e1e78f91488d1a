package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// How often readiness is checked, and how long a check may take. Together they
// bound how long a failure or a recovery goes unnoticed.
const (
	checkInterval = time.Second
	checkTimeout  = 2 * time.Second
	// recheckInterval is how often a check that fails is run.
	recheckInterval = 100 * time.Millisecond
	// checkStale is the age from which on a result counts no more: the check
	// hangs, which is no good sign.
	checkStale = checkInterval + checkTimeout + time.Second
	// startGrace is how long a part may take to get going before that is logged.
	startGrace = 5 * time.Second
)

// errUnchecked is a check's result until it has run.
var errUnchecked = errors.New("not checked yet")

// check asks whether one part of timerd works. It returns nil, or what is wrong
// in words for an operator, and ends when its context does.
type check func(context.Context) error

// readiness runs named checks over and over and remembers what each said last,
// so that asking it costs nothing and blocks on nothing. Its methods may be
// called concurrently once run was called.
type readiness struct {
	log    *slog.Logger
	names  []string
	checks []check

	mu      sync.Mutex
	results []result
}

// result is what a check said last.
type result struct {
	err   error
	at    time.Time
	grace time.Time // until when a failure is not worth a line
	told  bool      // err was logged
}

// add adds a check. Call it before run.
func (r *readiness) add(name string, c check) {
	r.names = append(r.names, name)
	r.checks = append(r.checks, c)
	now := time.Now()
	r.results = append(r.results, result{err: errUnchecked, at: now, grace: now.Add(startGrace)})
}

// run runs the checks until ctx ends. It logs each failure and each recovery
// once, and nothing of the first moments after add.
func (r *readiness) run(ctx context.Context) {
	var wg sync.WaitGroup
	for i := range r.checks {
		wg.Go(func() { r.repeat(ctx, i) })
	}
	wg.Wait()
}

func (r *readiness) repeat(ctx context.Context, i int) {
	for {
		within, cancel := context.WithTimeout(ctx, checkTimeout)
		err := r.checks[i](within)
		cancel()
		if ctx.Err() != nil {
			return
		}
		r.note(i, err)
		wait := checkInterval
		if err != nil {
			wait = recheckInterval
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

func (r *readiness) note(i int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, last := time.Now(), &r.results[i]
	switch {
	case err != nil && !last.told && now.After(last.grace):
		r.log.Warn("not ready", "check", r.names[i], "err", err)
		last.told = true
	case err == nil && last.told:
		r.log.Info("ready again", "check", r.names[i])
		last.told = false
	case err == nil:
		last.grace = now
	}
	last.err, last.at = err, now
}

// checked is the state of one check.
type checked struct {
	name string
	err  error
}

// state returns the state of every check, in the order they were added, and
// whether all is well.
func (r *readiness) state() ([]checked, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, ready := make([]checked, len(r.results)), true
	for i, res := range r.results {
		if age := time.Since(res.at); age > checkStale {
			res.err = fmt.Errorf("the check has not answered for %v", age.Round(time.Second))
		}
		all[i] = checked{r.names[i], res.err}
		ready = ready && res.err == nil
	}
	return all, ready
}
