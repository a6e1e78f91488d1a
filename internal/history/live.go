package history

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// pointSpan is the time span of one point, and points their number: 15 minutes.
	pointSpan = 10 * time.Second
	points    = 90
	// quickPause is the pause between two samples while somebody looks. Otherwise it is slowPause, one sample a point.
	quickPause = time.Second
	slowPause  = pointSpan
	// attention is the time of quick samples after a View.
	attention = 10 * time.Second
	// rateSpan is the longest time over which firings per second are measured: heartbeats come once a second, or less
	// often.
	rateSpan = 10 * time.Second
	// clockSlack is the longest time by which a new timerd's start may seem to precede the last sample, because clocks
	// differ.
	clockSlack = 5 * time.Second
	// mostTimerds limits the timerds with remembered counts.
	mostTimerds = 2000
	// sampleTimeout bounds one sample.
	sampleTimeout = 3 * time.Second
)

// LivePoint is the firings of a few seconds.
type LivePoint struct {
	At       time.Time // their beginning
	Fired    int64
	Lateness schedule.Lateness
}

// LiveNamespace is the recent past of a namespace.
type LiveNamespace struct {
	Name           string // as configured, or keys.Other for all others
	FiredPerSecond float64
	Lateness       schedule.Lateness // of the last 15 minutes
}

// LiveStats are the live numbers. Times are those of the local clock.
type LiveStats struct {
	At             time.Time   // of the last sample; the zero Time before the first one
	FiredPerSecond float64     // in the last seconds
	Points         []LivePoint // of the last 15 minutes at most, oldest first; the last one is not complete
	Lateness       schedule.Lateness
	Namespaces     []LiveNamespace // those with events in the last 15 minutes, the busiest first
	Gaps           int64           // in the last 15 minutes
}

// interval is the counts between two samples.
type interval struct {
	from, to time.Time
	counts   schedule.Counts
}

// Live shows the present state of an installation, from the counts in its timerds' heartbeats. It takes samples of
// firings, their lateness, and failures. Its methods may be called concurrently.
type Live struct {
	members func(context.Context) ([]query.Member, error)

	mu     sync.Mutex
	looked chan struct{} // signals a View
	wanted time.Time     // time of the last View
	since  time.Time
	at     time.Time
	last   map[string]schedule.Counts // each timerd's counts at its last sample
	recent []interval                 // of the last rateSpan
	past   []past                     // of the last 15 minutes
}

// past is a LivePoint by namespaces.
type past struct {
	at     time.Time
	counts schedule.Counts
}

// NewLive returns a Live for the timerds of members, a function like [query.Members].
func NewLive(members func(context.Context) ([]query.Member, error)) *Live {
	return &Live{members: members, looked: make(chan struct{}, 1), last: map[string]schedule.Counts{}}
}

// Run takes samples until ctx ends: one a second while somebody looks, else one every 10 seconds.
func (p *Live) Run(ctx context.Context) {
	p.mu.Lock()
	p.since = time.Now()
	p.mu.Unlock()
	for {
		p.sample(ctx)
		p.mu.Lock()
		pause := slowPause
		if !p.wanted.IsZero() && time.Since(p.wanted) < attention {
			pause = quickPause
		}
		p.mu.Unlock()
		pausing, cancel := context.WithTimeout(ctx, pause)
		select {
		case <-pausing.Done():
		case <-p.looked: // after a while: the first look takes a sample at once
		}
		cancel()
		if ctx.Err() != nil {
			return
		}
	}
}

// sample takes one sample.
func (p *Live) sample(ctx context.Context) {
	asking, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	members, err := p.members(asking)
	if ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.take(members, time.Now())
	}
}

// take adds the timerds' counts at a time.
func (p *Live) take(members []query.Member, now time.Time) {
	var sum schedule.Counts
	for _, m := range members {
		if m.Counts == nil {
			continue
		}
		before, known := p.last[m.Instance]
		// All counts of a timerd that came after the last sample are new.
		if known || !p.at.IsZero() && m.Since.After(p.at.Add(-clockSlack)) {
			add(&sum, *m.Counts, before)
		}
		if known || len(p.last) < mostTimerds {
			p.last[m.Instance] = *m.Counts
		}
	}
	p.forget(members)
	if !p.at.IsZero() {
		p.recent = append(p.recent, interval{p.at, now, sum})
		p.recent = slices.DeleteFunc(p.recent, func(i interval) bool { return now.Sub(i.to) >= rateSpan })
		p.addToPast(sum, now)
	}
	p.at = now
}

// forget forgets the counts of timerds that are gone, once there are many: a timerd that was only cut off may return.
func (p *Live) forget(members []query.Member) {
	if len(p.last) < mostTimerds/2 {
		return
	}
	here := map[string]bool{}
	for _, m := range members {
		here[m.Instance] = true
	}
	for instance := range p.last {
		if !here[instance] {
			delete(p.last, instance)
		}
	}
}

// add adds the growth of a timerd's counters since last to sum. A counter that was reset counts from 0.
func add(sum *schedule.Counts, now, before schedule.Counts) {
	sum.Gaps += since(now.Gaps, before.Gaps)
	for name, lateness := range now.Lateness {
		l := lateness
		if was := before.Lateness[name]; isAfter(l, was) {
			l.Merge(was, -1)
		}
		merge(sum, name, l)
	}
}

// since returns the growth of a counter.
func since(now, before int64) int64 {
	if now < before {
		return now
	}
	return now - before
}

// isAfter reports whether a histogram can be a later state of another one.
func isAfter(now, before schedule.Lateness) bool {
	for i := range now {
		if now[i] < before[i] {
			return false
		}
	}
	return true
}

// merge adds events of a namespace to counts.
func merge(c *schedule.Counts, name string, l schedule.Lateness) {
	if l.Count() == 0 {
		return
	}
	if c.Lateness == nil {
		c.Lateness = map[string]schedule.Lateness{}
	}
	all := c.Lateness[name]
	all.Merge(l, 1)
	c.Lateness[name] = all
}

// addToPast adds the growth of the counts since the last call to the past, for the time until now.
func (p *Live) addToPast(sum schedule.Counts, now time.Time) {
	begin := p.since.Add(now.Sub(p.since).Truncate(pointSpan))
	if begin.Equal(now) && begin.After(p.since) { // it ends the previous one
		begin = begin.Add(-pointSpan)
	}
	if n := len(p.past); n == 0 || p.past[n-1].at.Before(begin) {
		p.past = append(p.past, past{at: begin})
	}
	p.past = slices.DeleteFunc(p.past, func(o past) bool { return now.Sub(o.at) > points*pointSpan })
	add(&p.past[len(p.past)-1].counts, sum, schedule.Counts{})
}

// View returns the latest numbers. While it is called regularly, a sample is taken each second.
func (p *Live) View() LiveStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.wanted) >= attention {
		select {
		case p.looked <- struct{}{}:
		default:
		}
	}
	p.wanted = time.Now()
	v := LiveStats{At: p.at}
	all := map[string]*LiveNamespace{}
	for _, o := range p.past {
		point := LivePoint{At: o.at}
		for name, l := range o.counts.Lateness {
			if all[name] == nil {
				all[name] = &LiveNamespace{Name: name}
			}
			all[name].Lateness.Merge(l, 1)
			point.Lateness.Merge(l, 1)
		}
		point.Fired = point.Lateness.Count()
		v.Lateness.Merge(point.Lateness, 1)
		v.Points = append(v.Points, point)
		v.Gaps += o.counts.Gaps
	}
	p.addRates(&v, all)
	for _, n := range all {
		v.Namespaces = append(v.Namespaces, *n)
	}
	slices.SortFunc(v.Namespaces, func(a, b LiveNamespace) int {
		return cmp.Or(cmp.Compare(b.Lateness.Count(), a.Lateness.Count()), cmp.Compare(a.Name, b.Name))
	})
	return v
}

// addRates adds the firings per second of the last seconds.
func (p *Live) addRates(v *LiveStats, all map[string]*LiveNamespace) {
	if len(p.recent) == 0 {
		return
	}
	span := p.recent[len(p.recent)-1].to.Sub(p.recent[0].from).Seconds()
	if span <= 0 {
		return
	}
	for _, i := range p.recent {
		for name, l := range i.counts.Lateness {
			perSecond := float64(l.Count()) / span
			v.FiredPerSecond += perSecond
			if all[name] != nil {
				all[name].FiredPerSecond += perSecond
			}
		}
	}
}
