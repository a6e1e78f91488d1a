package status

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/rights"
	"github.com/timerd-io/timerd/keys"
)

const (
	// usualLease and usualSweep are those of a timerd that does not say, or of none.
	usualLease = 10 * time.Second
	usualSweep = time.Second
	// longestLease and longestSweep are the most that timerd takes: a heartbeat may be anybody's.
	longestLease = 30 * time.Second
	longestSweep = time.Minute
	// overdueAge is for how long an [OverdueWatch] does not ask again: a cluster has 16,384 partitions.
	overdueAge = 3 * time.Second
	// secondLook is after what time a caller without a watch looks again, whether the overdue timers have become fewer.
	secondLook = time.Second
)

// Overdue is the timers that are due and not settled for longer than the lease and two sweeps, read from the schedule itself.
type Overdue struct {
	Timers     int64     `json:"timers"`
	Over       bool      `json:"over,omitempty"` // there are more than were looked at
	Key        string    `json:"key"`            // of the one that was due first, as events show it
	Due        time.Time `json:"due"`            // when that was
	Namespaces []string  `json:"namespaces"`     // of some of them
	PerSecond  float64   `json:"persecond"`      // how many fewer there were each second lately
	// Stands is for how long none was settled; 0 while some are. Stuck says that this is a failure.
	Stands time.Duration `json:"stands"` // in ns
	Stuck  bool          `json:"stuck"`

	Held   int64 `json:"held"`   // timers that wait besides: on hold
	Parked int64 `json:"parked"` // set aside
	Spaced int64 `json:"spaced"` // given a later time by a resume

	since  time.Duration // after what time a timer is overdue
	age    time.Duration // how long the first one has been due, by Redis's clock
	drains bool          // the watch itself has seen them become fewer within a lease
	slow   bool          // another one has
}

// Age returns for how long the timer has been due that was due first.
func (o *Overdue) Age() time.Duration { return o.age }

// Drains reports whether the caller's watch has seen the timers become fewer within a lease.
func (o *Overdue) Drains() bool { return o.drains }

// OverdueWatch compares the overdue timers of one report with those of the last one. The zero value has seen none. Its methods may be
// called concurrently.
type OverdueWatch struct {
	mu    sync.Mutex
	asked time.Time // when Redis answered last; the zero time if it never did
	seen  query.Overdue
	at    time.Time // of seen; the zero time for nothing
	moved time.Time // when there was progress last; the zero time if none was seen yet
	last  *Overdue
}

// look counts the overdue timers of all servers, or returns a recent count. It returns nil if there are none, or they are not known.
func (w *OverdueWatch) look(ctx context.Context, f *facts) (*Overdue, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.asked.IsZero() && time.Since(w.asked) < overdueAge {
		return w.last, nil
	}
	if err := context.Cause(ctx); err != nil { // another look at a silent server took the time: no other one is to blame
		return nil, err
	}
	lease, since := overdueAfter(f.members)
	seen, err := f.countOverdue(ctx, since)
	if err != nil {
		return nil, err
	}
	w.asked = time.Now()
	w.note(seen, w.asked, lease, since)
	if o := w.last; o != nil && o.Stuck && slices.ContainsFunc(f.members, drains) {
		o.Stands, o.Stuck, o.slow = 0, false, true // this watch has not looked for long enough to see it
	}
	return w.last, nil
}

// drains reports whether a living timerd has seen overdue timers become fewer within a lease.
func drains(m query.Member) bool { return m.Alive && m.Counts != nil && m.Counts.Drains }

// note takes what was seen at a local time.
func (w *OverdueWatch) note(seen query.Overdue, at time.Time, lease, since time.Duration) {
	was, before := w.seen, w.at
	if seen.Due.IsZero() {
		seen.Due = seen.At.Add(-since) // the first one is no timer
	}
	w.seen, w.at = seen, at
	if seen.Timers == 0 {
		w.last, w.moved, w.at = nil, time.Time{}, time.Time{}
		return
	}
	o := &Overdue{
		Timers: seen.Timers, Over: seen.Over, Key: keys.EncodeText(seen.First.String()), Due: seen.Due, Namespaces: seen.Namespaces,
		Held: seen.Held, Parked: seen.Parked, Spaced: seen.Spaced, since: since, age: seen.At.Sub(seen.Due),
	}
	w.last = o
	defer func() { o.drains = !w.moved.IsZero() && at.Sub(w.moved) < lease }()
	if before.IsZero() {
		return
	}
	fewer := was.Timers - seen.Timers
	if seen.Over || was.Over {
		fewer = 0 // not all were counted
	}
	if seen.Due.After(was.Due) || fewer > 0 {
		w.moved = at
		o.PerSecond = max(float64(fewer)/at.Sub(before).Seconds(), 0)
		return
	}
	// What was seen to move may rest for a lease. What never was has stood still since it became overdue, as far as can be told.
	o.Stands = o.age - since
	if !w.moved.IsZero() {
		o.Stands = min(o.Stands, at.Sub(w.moved))
	}
	o.Stuck = o.Stands >= lease
}

// overdueAfter returns the longest lease of the living timerds, and after what time a timer is overdue: a lease and two sweeps.
func overdueAfter(members []query.Member) (lease, since time.Duration) {
	for _, m := range members {
		if !m.Alive {
			continue
		}
		l, _ := time.ParseDuration(m.Settings["TIMERD_LEASE"])
		sweep, _ := time.ParseDuration(m.Settings["TIMERD_SWEEP_INTERVAL"])
		l, sweep = min(l, longestLease), min(sweep, longestSweep)
		lease, since = max(lease, l), max(since, l+2*sweep)
	}
	if since <= 0 {
		return usualLease, usualLease + 2*usualSweep
	}
	return lease, since
}

// countOverdue adds up the overdue timers of the servers.
func (f *facts) countOverdue(ctx context.Context, since time.Duration) (all query.Overdue, err error) {
	found, errs := make([]query.Overdue, len(f.servers)), make([]error, len(f.servers))
	var wg sync.WaitGroup
	for i := range f.servers {
		wg.Go(func() { found[i], errs[i] = query.CountOverdue(ctx, f.servers[i].node, since) })
	}
	wg.Wait()
	for i := range found {
		if errs[i] != nil && err == nil {
			err = errs[i]
		}
		all.Add(found[i])
	}
	return all, err
}

// gatherOverdue asks which timers are overdue. Without a watch it looks a second time, for their rate.
func (f *facts) gatherOverdue(ctx context.Context) {
	watch := f.Overdue
	if watch == nil {
		watch = &OverdueWatch{}
	}
	f.overdue, f.overdueErr = watch.look(ctx, f)
	if f.Overdue == nil && f.overdue != nil && backoff.Sleep(ctx, secondLook) {
		watch.asked = time.Time{}
		f.overdue, f.overdueErr = watch.look(ctx, f)
	}
}

// checkOverdue reports timers that are due and not settled for longer than that may take.
func checkOverdue(f *facts, p *diag.Findings) {
	if f.overdueErr != nil && !f.impaired() {
		fix := "run timerd doctor, which asks each server of Redis"
		if rights.Refused(f.overdueErr) {
			fix = "let the user run what deploy/users.acl grants to timerd"
		}
		p.Fail(fix, "cannot tell whether timers are overdue: %v", f.overdueErr)
		return
	}
	o := f.overdue
	if o == nil {
		if f.redis != nil && f.overdueErr == nil {
			p.OK("no timer has been due and not settled for longer than the lease and two sweeps")
		}
		return
	}
	number := count(o.Timers, "timer is", "timers are")
	if o.Over {
		number = "over " + number
	}
	text := fmt.Sprintf("%s overdue, due more than %s ago and not settled; the oldest, %s, was due at %s; of %s", number, diag.Duration(o.since),
		keys.Abbreviate(o.Key), o.Due.Format(timeLayout), distinct(o.Namespaces))
	var besides []string
	for _, other := range []struct {
		timers int64
		wait   string
	}{{o.Held, "on hold"}, {o.Parked, "set aside"}, {o.Spaced, "given a later time by a resume"}} {
		if other.timers > 0 {
			besides = append(besides, fmt.Sprintf("%d %s", other.timers, other.wait))
		}
	}
	if len(besides) > 0 {
		text += "; not counted: " + strings.Join(besides, ", ")
	}
	switch {
	case o.Stuck:
		p.Fail("", "%s; none was settled for %s", text, diag.Duration(o.Stands.Round(time.Second)))
	case o.PerSecond > 0:
		p.Warn("", "%s; they become fewer by %.3g a second", text, o.PerSecond)
	case o.slow:
		p.Warn("", "%s; they become fewer, but slowly", text)
	default:
		p.Warn("", "%s", text)
	}
}
