package schedule

import (
	"context"
	"fmt"
	"time"

	"github.com/timerd-io/timerd/keys"
)

// Heartbeat notes that the timerd of the given instance id is alive, and returns its rank among those whose last
// heartbeat is not older than ttl, and how many they are. The order is by id, the same for all.
func (n *Node) Heartbeat(ctx context.Context, instance string, ttl time.Duration) (rank, of int, err error) {
	alive, err := n.schedule.scripts.Load().heartbeat.Run(ctx, n.schedule.rdb, []string{keys.Single.Members()}, instance, ttl.Milliseconds()).StringSlice()
	if err != nil {
		return 0, 0, fmt.Errorf("schedule: heartbeat: %w", err)
	}
	for i, id := range alive {
		if id == instance {
			rank = i
		}
	}
	return rank, len(alive), nil
}

// Deregister takes a timerd that stops out of the ranks, so that the others need not wait for its silence to tell.
func (n *Node) Deregister(ctx context.Context, instance string) error {
	if err := n.schedule.rdb.ZRem(ctx, keys.Single.Members(), instance).Err(); err != nil {
		return fmt.Errorf("schedule: deregister: %w", err)
	}
	return nil
}
