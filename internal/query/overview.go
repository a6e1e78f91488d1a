package query

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// overviewChunk limits the partitions of one call: half as many as a scan for due timers, because it asks twice as much
// of each.
const overviewChunk = 128

// Overview counts the timers of a node.
type Overview struct {
	At      time.Time // by the server's clock
	Pending int64     // due later
	Owed    int64     // due and unclaimed
	Firing  int64     // claimed and not settled, or perhaps published
	Held    int64     // due and on hold
	// Unseen is the part of Owed that may be on hold: so many unclaimed timers are due, as while NATS is away, that not
	// all were read.
	Unseen int64
	// Oldest is the owed timer with the earliest due time, as far as known without reading all. It is the zero Key if
	// none is owed.
	Oldest    keys.Key
	OldestDue time.Time
	Moving    int // partitions left out because their slots are moving
}

// CountTimers counts the timers of the node, however many there are, without reading them; only with holds it reads the
// names of some.
func CountTimers(ctx context.Context, n *schedule.Node) (Overview, error) {
	var all Overview
	err := n.Master().RunOver(ctx, n.Index().Script(lua, "overview"), overviewChunk, nil, func(cmd *redis.Cmd) error {
		reply, err := schedule.ReadReply(cmd, 9, 0)
		if err != nil {
			return err
		}
		all.At = schedule.Millis(reply.Int(0)).Time()
		all.Pending += reply.Int(1)
		all.Owed += reply.Int(2)
		all.Firing += reply.Int(3)
		all.Moving += int(reply.Int(4))
		all.Held += reply.Int(7)
		all.Unseen += reply.Int(8)
		oldest := schedule.Millis(reply.Int(5)).Time()
		if key, err := keys.Parse(reply.Text(6)); err == nil && reply.Int(5) >= 0 &&
			(all.OldestDue.IsZero() || oldest.Before(all.OldestDue)) {
			all.Oldest, all.OldestDue = key, oldest
		}
		return nil
	})
	if err != nil {
		return all, fmt.Errorf("schedule: count the timers: %w", err)
	}
	return all, nil
}

// Calls counts the function library's calls that set or cancelled a timer.
type Calls struct {
	Set, Cancelled int64
	Partitions     int // partitions read; those of moving slots are left out
}

// CountCalls returns the counts in the node's index since it exists: all calls that cancelled a timer, and the calls
// that set one without a timerd receiving their message.
func CountCalls(ctx context.Context, n *schedule.Node) (Calls, error) {
	m := n.Master()
	calls := Calls{Partitions: len(m.Partitions)}
	err := m.RunOver(ctx, n.Index().Script(lua, "calls"), schedule.Chunk, nil, func(cmd *redis.Cmd) error {
		reply, err := schedule.ReadReply(cmd, 3, 0)
		if err != nil {
			return err
		}
		calls.Set += reply.Int(0)
		calls.Cancelled += reply.Int(1)
		calls.Partitions -= int(reply.Int(2))
		return nil
	})
	if err != nil {
		return calls, fmt.Errorf("schedule: count the calls of the function library: %w", err)
	}
	return calls, nil
}
