package lab

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
)

// MoveSlots moves the slots from first to last from one master to another, and returns once all nodes agree. Where the
// servers can, since Valkey 9.0 and Redis 8.4, they move them by themselves, with all their keys in one step; atomic
// reports whether they do. Elsewhere each slot is moved key by key.
func (c *Cluster) MoveSlots(ctx context.Context, first, last int, from, to *devserver.Redis) (atomic bool, err error) {
	if atomic, err = c.migrate(ctx, first, last, from, to); atomic || err != nil {
		return atomic, err
	}
	for slot := first; slot <= last; slot++ {
		if err := c.OpenSlot(ctx, slot, from, to); err != nil {
			return false, err
		}
		if err := c.CloseSlot(ctx, slot, from, to); err != nil {
			return false, err
		}
	}
	return false, c.AwaitOK(ctx)
}

// migrate has the servers move slots by themselves. able is false, and nothing is moved, if they cannot.
func (c *Cluster) migrate(ctx context.Context, first, last int, from, to *devserver.Redis) (able bool, err error) {
	way, err := "Valkey's", from.Admin().Do(ctx, "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", first, last, "NODE",
		c.ids[to]).Err()
	if redis.HasErrorPrefix(err, "unknown subcommand") {
		way, err = "Redis's", to.Admin().Do(ctx, "CLUSTER", "MIGRATION", "IMPORT", first, last).Err()
	}
	if redis.HasErrorPrefix(err, "unknown subcommand") {
		return false, nil
	}
	if err == nil {
		err = devserver.Until(ctx, agreementTimeout, func() error { return c.allOwned(ctx, first, last, to) })
	}
	if err == nil {
		err = c.AwaitOK(ctx)
	}
	if err != nil {
		return true, fmt.Errorf("lab: %s migration of slots %d to %d from %s to %s: %w", way, first, last, from.Addr(),
			to.Addr(), err)
	}
	return true, nil
}

// allOwned returns an error unless a master says that it has all slots from first to last. The error has the
// migrations' own status.
func (c *Cluster) allOwned(ctx context.Context, first, last int, master *devserver.Redis) error {
	ranges, err := c.Slots(ctx, master)
	if err != nil {
		return err
	}
	has := 0
	for _, r := range ranges {
		has += max(0, min(last, int(r.End))-max(first, int(r.Start))+1)
	}
	if has == last-first+1 {
		return nil
	}
	var told []string
	for _, args := range [][]any{{"CLUSTER", "GETSLOTMIGRATIONS"}, {"CLUSTER", "MIGRATION", "STATUS", "ALL"}} {
		if status, err := master.Admin().Do(ctx, args...).Result(); err == nil {
			told = append(told, fmt.Sprint(status))
		}
	}
	return fmt.Errorf("it has %d of %d; %s", has, last-first+1, strings.Join(told, " "))
}
