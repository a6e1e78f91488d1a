package service

import (
	"slices"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/rights"
	"github.com/timerd-io/timerd/schedule"
)

// How often this timerd says with its heartbeats what it has counted, at most and at least: it sends one for each master of a
// cluster, and where nothing was counted there is nothing to be written and kept in the append-only file.
const (
	countsPause = 900 * time.Millisecond
	countsAgain = 10 * time.Second
)

// counts is what this timerd has counted since its start, for its heartbeats. Its methods may be called concurrently.
type counts struct {
	mu      sync.Mutex
	all     schedule.Counts
	changed bool      // since then
	said    time.Time // when it was said last
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

// add counts something else.
func (c *counts) add(count func(*schedule.Counts)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	count(&c.all)
	c.changed = true
}

// setDeaf notes which channels of keyspace events this timerd may not hear, by what its user lacks on each server.
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

// setWrong notes which of the timerd's own checks fail.
func (c *counts) setWrong(wrong []schedule.Wrong) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(wrong, c.all.Wrong) {
		c.all.Wrong, c.changed = wrong, true
	}
}

// say returns what is to be said with the next heartbeat; nil for nothing.
func (c *counts) say() *schedule.Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	if since := time.Since(c.said); since < countsPause || !c.changed && since < countsAgain {
		return nil
	}
	c.said, c.changed = time.Now(), false
	return c.all.Clone()
}
