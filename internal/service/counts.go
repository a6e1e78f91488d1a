package service

import (
	"sync"
	"time"

	"github.com/timerd-io/timerd/schedule"
)

// countsPause is how often this timerd says with its heartbeats what it has counted. In a cluster it sends one for each master.
const countsPause = 900 * time.Millisecond

// counts is what this timerd has counted since its start, for its heartbeats. Its methods may be called concurrently.
type counts struct {
	mu   sync.Mutex
	all  schedule.Counts
	said time.Time // when it was said last
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
}

// say returns what is to be said with the next heartbeat; nil if it was said just now.
func (c *counts) say() *schedule.Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.said) < countsPause {
		return nil
	}
	c.said = time.Now()
	return c.all.Clone()
}
