package query

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// overviewChunk is how many partitions one call counts: half as many as a scan for due timers, which asks half as much of each.
const overviewChunk = 128

// Overview is how many timers a node has.
type Overview struct {
	At      time.Time // by the server's clock
	Pending int64     // due later
	Owed    int64     // due, and claimed by nobody
	Firing  int64     // claimed and not settled, or perhaps published
	Held    int64     // due and held
	// Unseen is how many of those owed may be held: so many are due that no claim has looked at yet, as while NATS is away,
	// that not all of them were looked at here.
	Unseen int64
	// Oldest is one of those that are owed which was due first, as far as that can be told without reading all. It is the zero
	// Key if none is owed.
	Oldest    keys.Key
	OldestDue time.Time
	Moving    int // partitions that are left out, because their slots are moving
}

// CountTimers counts the timers of the node, however many there are, without reading them; only where there are holds it reads the
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
		if key, err := keys.Parse(reply.Text(6)); err == nil && reply.Int(5) >= 0 && (all.OldestDue.IsZero() || oldest.Before(all.OldestDue)) {
			all.Oldest, all.OldestDue = key, oldest
		}
		return nil
	})
	if err != nil {
		return all, fmt.Errorf("schedule: count the timers: %w", err)
	}
	return all, nil
}

// Calls is how many calls of the function library have set or cancelled a timer.
type Calls struct {
	Set, Cancelled int64
	Partitions     int // how many partitions were asked; those whose slots are moving cannot be
}

// CountCalls returns the calls that were counted in the index of the node, since it is there: all that have cancelled a timer,
// and those that have set one which no timerd has heard of by a message.
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
