package query

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// overdueRounds is the number of further calls for partitions with more timers than one call reads: some 20,000
// entries.
const overdueRounds = 20

// overdueChunk limits the partitions of a call. With 32 holds, and a different list of holds in each partition, a call
// takes 5 ms at most.
const overdueChunk = 32

// Overdue counts a node's timers that have been due for long and are not settled.
type Overdue struct {
	At     time.Time // by the server's clock; the zero time if no partition was counted
	Timers int64
	Over   bool // not all entries were searched
	// First is the timer with the earliest due time, Due; the zero Key if none is overdue.
	First keys.Key
	Due   time.Time
	// Namespaces are the namespaces of some overdue timers, in order.
	Namespaces []string
	// Entries counts the index entries due by then or in firing, of any kind.
	Entries int64

	Held, Parked, Spaced int64 // other due timers: on hold, set aside, or given a later time by a resume
}

// CountOverdue counts in the index the node's timers that are due for longer than since and not settled. It reads a
// bounded number of entries, in calls that hold Redis for two or three ms. In a cluster it counts only in partitions
// that may have such timers, also for Held, Parked and Spaced, and in all of them once one timer is overdue.
func CountOverdue(ctx context.Context, n *schedule.Node, since time.Duration) (Overdue, error) {
	some, err := n.DueFor(ctx, since)
	if err != nil {
		return Overdue{}, fmt.Errorf("schedule: look for overdue timers: %w", err)
	}
	all := n.Master()
	counted, err := countOverdue(ctx, n, some, since)
	if err != nil || counted.Timers == 0 || len(some.Partitions) == len(all.Partitions) {
		return counted, err
	}
	return countOverdue(ctx, n, all, since)
}

// countOverdue counts the timers of some partitions of the node.
func countOverdue(ctx context.Context, n *schedule.Node, of schedule.Master,
	since time.Duration) (all Overdue, err error) {
	script := n.Index().Script(lua, "overdue")
	type part struct{ tag, due, firing any }
	var rest []part
	read := func(cmd *redis.Cmd) error {
		reply, err := schedule.ReadReply(cmd, 9, 3)
		if err != nil {
			return err
		}
		all.add(reply)
		for i := 9; i < len(reply); i += 3 {
			rest = append(rest, part{reply[i], reply[i+1], reply[i+2]})
		}
		return nil
	}
	err = of.RunOver(ctx, script, overdueChunk, []any{since.Milliseconds(), 0, 0}, read)
	for round := 0; err == nil && len(rest) > 0 && round < overdueRounds; round++ {
		next := rest[0]
		rest = rest[1:]
		err = read(script.Run(ctx, n.Server(), nil, since.Milliseconds(), next.due, next.firing, next.tag))
	}
	all.Over = len(rest) > 0
	slices.Sort(all.Namespaces)
	all.Namespaces = slices.Compact(all.Namespaces)
	if err != nil {
		return all, fmt.Errorf("schedule: count the overdue timers: %w", err)
	}
	return all, nil
}

// add adds the counts of one call.
func (o *Overdue) add(reply schedule.Reply) {
	o.At = schedule.Millis(reply.Int(0)).Time()
	o.Timers += reply.Int(1)
	if key, err := keys.Parse(reply.Text(3)); err == nil && reply.Int(2) >= 0 {
		o.first(key, schedule.Millis(reply.Int(2)).Time())
	}
	o.Entries += reply.Int(4)
	o.Held += reply.Int(5)
	o.Parked += reply.Int(6)
	o.Spaced += reply.Int(7)
	for _, name := range reply.List(8) {
		if text, ok := name.(string); ok {
			o.Namespaces = append(o.Namespaces, text)
		}
	}
}

// first keeps the timer with the earliest due time.
func (o *Overdue) first(key keys.Key, due time.Time) {
	if o.Due.IsZero() || due.Before(o.Due) {
		o.First, o.Due = key, due
	}
}

// Add adds the overdue timers of another node.
func (o *Overdue) Add(other Overdue) {
	if other.At.After(o.At) {
		o.At = other.At
	}
	o.Timers, o.Over, o.Entries = o.Timers+other.Timers, o.Over || other.Over, o.Entries+other.Entries
	o.Held, o.Parked, o.Spaced = o.Held+other.Held, o.Parked+other.Parked, o.Spaced+other.Spaced
	if !other.Due.IsZero() {
		o.first(other.First, other.Due)
	}
	o.Namespaces = append(o.Namespaces, other.Namespaces...)
	slices.Sort(o.Namespaces)
	o.Namespaces = slices.Compact(o.Namespaces)
}
