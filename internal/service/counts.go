package service

import (
	"slices"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/rights"
	"github.com/timerd-io/timerd/schedule"
)

// The shortest and longest interval between this timerd's reports of its counts with its heartbeats. A report goes to
// each master of a cluster; without news there is nothing to write and to keep in the append-only file.
const (
	countsPause = 900 * time.Millisecond
	countsAgain = 10 * time.Second
	// toldFor is the time for which stops and clock steps are reported, and mostTold limits the number of each.
	toldFor  = 10 * time.Minute
	mostTold = 5
)

// counts has this timerd's counts since its start, for its heartbeats. Its methods may be called concurrently.
type counts struct {
	mu      sync.Mutex
	all     schedule.Counts
	changed bool      // since said
	said    time.Time // the time of the last report

	// The times of the stops and steps counted in all, by the local clock.
	stopped, stepped []time.Time
}

// fired counts an event of a namespace.
func (c *counts) fired(namespace string, late time.Duration) {
	c.add(func(all *schedule.Counts) {
		l := all.Lateness[namespace]
		l.Add(late)
		if all.Lateness == nil {
			all.Lateness = map[string]schedule.Lateness{}
		}
		all.Lateness[namespace] = l
	})
}

// add changes the counts.
func (c *counts) add(count func(*schedule.Counts)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	count(&c.all)
	c.changed = true
}

// setDeaf sets the channels of keyspace events that this timerd has no right to, from the missing rights on each
// server.
func (c *counts) setDeaf(lacking []rights.Lacking) {
	var user string
	var deaf []string
	for _, l := range lacking {
		if len(l.Channels) > 0 {
			user, deaf = l.User, slices.Concat(deaf, l.Channels)
		}
	}
	slices.Sort(deaf)
	deaf = slices.Compact(deaf)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(deaf, c.all.Deaf) {
		c.all.User, c.all.Deaf, c.changed = user, deaf, true
	}
}

// setWrong sets the failing checks of this timerd.
func (c *counts) setWrong(wrong []schedule.Wrong) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(wrong, c.all.Wrong) {
		c.all.Wrong, c.changed = wrong, true
	}
}

// setDrains sets whether overdue timers have become fewer within a lease.
func (c *counts) setDrains(drains bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if drains != c.all.Drains {
		c.all.Drains, c.changed = drains, true
	}
}

// noteStop notes that this timerd did not run, or did not reach Redis, for a time that ends now. If several parts
// notice the same stop, it counts once.
func (c *counts) noteStop(length time.Duration, frozen bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	stop := schedule.Stop{At: schedule.MillisOf(now), For: length.Milliseconds(), Frozen: frozen}
	if last := len(c.stopped) - 1; last >= 0 && !now.Add(-length).After(c.stopped[last]) {
		was := c.all.Stops[last]
		stop.For, stop.Frozen = max(stop.For, was.For), stop.Frozen || was.Frozen
		c.all.Stops, c.stopped = c.all.Stops[:last:last], c.stopped[:last]
	}
	c.all.Stops, c.stopped = append(slices.Clip(c.all.Stops), stop), append(c.stopped, now)
	c.forget(now)
	c.changed = true
}

// noteStep notes a clock step of a Redis server, and returns it in the form of heartbeats.
func (c *counts) noteStep(server string, step schedule.ClockStep) schedule.Step {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	noted := schedule.Step{Server: server, At: schedule.MillisOf(step.At), By: step.By.Milliseconds()}
	c.all.Steps = append(slices.Clip(c.all.Steps), noted)
	c.stepped = append(c.stepped, now)
	c.forget(now)
	c.changed = true
	return noted
}

// forget drops the stops and steps older than toldFor, and the oldest of more than mostTold. The caller holds c.mu.
func (c *counts) forget(now time.Time) {
	old := func(noted []time.Time) int {
		n := max(len(noted)-mostTold, 0)
		for n < len(noted) && now.Sub(noted[n]) >= toldFor {
			n++
		}
		return n
	}
	if n := old(c.stopped); n > 0 {
		c.all.Stops, c.stopped, c.changed = c.all.Stops[n:], c.stopped[n:], true
	}
	if n := old(c.stepped); n > 0 {
		c.all.Steps, c.stepped, c.changed = c.all.Steps[n:], c.stepped[n:], true
	}
}

// next returns the counts for the next heartbeat, or nil if there is nothing to report.
func (c *counts) next() *schedule.Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(time.Now())
	if since := time.Since(c.said); since < countsPause || !c.changed && since < countsAgain {
		return nil
	}
	c.said, c.changed = time.Now(), false
	return c.all.Clone()
}
