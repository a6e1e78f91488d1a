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
	"github.com/timerd-io/timerd/keys"
)

const (
	// usualLease and usualSweep are assumed for a timerd that does not report its own, and without a timerd.
	usualLease = 10 * time.Second
	usualSweep = time.Second
	// longestLease and longestSweep are timerd's own limits: a heartbeat may be forged.
	longestLease = 30 * time.Second
	longestSweep = time.Minute
	// overdueAge is the time for which an [OverdueWatch] reuses an answer: a cluster has 16,384 partitions.
	overdueAge = 3 * time.Second
	// secondLook is the pause of a caller without a watch between two readings, which show whether the overdue timers
	// become fewer.
	secondLook = time.Second
)

// Overdue is the timers that have been due and not settled for longer than the lease and two sweeps, read from the
// schedule itself.
type Overdue struct {
	Timers     int64     `json:"timers"`
	Over       bool      `json:"over,omitempty"` // not all were counted
	Key        string    `json:"key"`            // of the timer with the earliest due time, as in events
	Due        time.Time `json:"due"`            // its due time
	Namespaces []string  `json:"namespaces"`     // of some overdue timers
	PerSecond  float64   `json:"persecond"`      // the recent decrease per second
	// Stands is the time since the last progress; 0 while some are settled. Stuck means that this is a failure.
	Stands time.Duration `json:"stands"` // in ns
	Stuck  bool          `json:"stuck"`

	Held   int64 `json:"held"`   // other due timers: on hold
	Parked int64 `json:"parked"` // set aside
	Spaced int64 `json:"spaced"` // given a later time by a resume

	since  time.Duration // the time after which a timer is overdue
	age    time.Duration // the time since Due, by Redis's clock
	drains bool          // within a lease, this watch has seen the number fall
	slow   bool          // another watch has seen the number fall
}

// Age returns the time since the earliest due time.
func (o *Overdue) Age() time.Duration { return o.age }

// Drains reports whether the caller's watch has seen the timers become fewer within a lease.
func (o *Overdue) Drains() bool { return o.drains }

// OverdueWatch compares the overdue timers of one report with those of the last one. The zero value is ready. Its
// methods may be called concurrently.
type OverdueWatch struct {
	mu    sync.Mutex
	asked time.Time // time of Redis's last answer; the zero time before the first
	seen  query.Overdue
	at    time.Time // the time of seen; the zero time if nothing was seen
	moved time.Time // time of the last progress; the zero time before the first
	last  *Overdue
}

// look counts the overdue timers of all servers, or returns a recent count. It returns nil if there are none, or if
// they are unknown.
func (w *OverdueWatch) look(ctx context.Context, f *facts) (*Overdue, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.asked.IsZero() && time.Since(w.asked) < overdueAge {
		return w.last, nil
	}
	if err := context.Cause(ctx); err != nil { // a look at a silent server took the time: no other server is to blame
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
		o.Stands, o.Stuck, o.slow = 0, false, true // this watch began too late to see the number fall
	}
	return w.last, nil
}

// drains reports whether a living timerd has seen overdue timers become fewer within a lease.
func drains(m query.Member) bool { return m.Alive && m.Counts != nil && m.Counts.Drains }

// note adds a count made at a local time.
func (w *OverdueWatch) note(seen query.Overdue, at time.Time, lease, since time.Duration) {
	was, before := w.seen, w.at
	if seen.Due.IsZero() {
		seen.Due = seen.At.Add(-since) // its entry names no due time: take the latest that is overdue
	}
	w.seen, w.at = seen, at
	if seen.Timers == 0 {
		w.last, w.moved, w.at = nil, time.Time{}, time.Time{}
		return
	}
	o := &Overdue{
		Timers: seen.Timers, Over: seen.Over, Key: keys.EncodeText(seen.First.String()), Due: seen.Due,
		Namespaces: seen.Namespaces,
		Held:       seen.Held, Parked: seen.Parked, Spaced: seen.Spaced, since: since, age: seen.At.Sub(seen.Due),
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
	// Timers that have moved may rest for a lease. Timers never seen to move have stood still since they became
	// overdue, as far as known.
	o.Stands = o.age - since
	if !w.moved.IsZero() {
		o.Stands = min(o.Stands, at.Sub(w.moved))
	}
	o.Stuck = o.Stands >= lease
}

// overdueAfter returns the longest lease of the living timerds, and the time after which a timer is overdue: a lease
// and two sweeps.
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

// gatherOverdue counts the overdue timers. Without a watch it counts twice, for their rate.
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

// checkOverdue reports overdue timers.
func checkOverdue(f *facts, p *diag.Findings) {
	if f.overdueErr != nil && !f.impaired() {
		p.Fail(askFix(f.overdueErr), "cannot count the overdue timers: %v", f.overdueErr)
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
	text := fmt.Sprintf("%s overdue, due more than %s ago and not settled; the oldest, %s, was due at %s; of %s",
		number, diag.Duration(o.since),
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
