package lab

import (
	"context"
	"slices"

	"github.com/timerd-io/timerd/internal/devserver"
)

const (
	migrateTimeoutMs = 10_000 // of one MIGRATE
	migrateBatch     = 100    // keys of one MIGRATE
)

// OpenSlot begins to move a slot from one master to another.
func (c *Cluster) OpenSlot(ctx context.Context, slot int, from, to *devserver.Redis) error {
	if err := do(ctx, to, "CLUSTER", "SETSLOT", slot, "IMPORTING", c.ids[from]); err != nil {
		return err
	}
	return do(ctx, from, "CLUSTER", "SETSLOT", slot, "MIGRATING", c.ids[to])
}

// MoveKeys moves up to n keys of an open slot, and returns how many it moved.
func (c *Cluster) MoveKeys(ctx context.Context, slot, n int, from, to *devserver.Redis) (int, error) {
	names, err := from.Admin().ClusterGetKeysInSlot(ctx, slot, n).Result()
	if err != nil || len(names) == 0 {
		return 0, err
	}
	args := []any{"MIGRATE", "127.0.0.1", to.Port(), "", 0, migrateTimeoutMs, "KEYS"}
	for _, name := range names {
		args = append(args, name)
	}
	return len(names), do(ctx, from, args...)
}

// CloseSlot moves the rest of an open slot and ends the move on every running master.
func (c *Cluster) CloseSlot(ctx context.Context, slot int, from, to *devserver.Redis) error {
	for {
		moved, err := c.MoveKeys(ctx, slot, migrateBatch, from, to)
		if err != nil {
			return err
		}
		if moved == 0 {
			break
		}
	}
	// The new owner first, so that the slot is never without one; then the old one, which sends others there.
	others := slices.DeleteFunc(c.Masters(ctx), func(s *devserver.Redis) bool { return s == from || s == to })
	for _, node := range append([]*devserver.Redis{to, from}, others...) {
		if err := do(ctx, node, "CLUSTER", "SETSLOT", slot, "NODE", c.ids[to]); err != nil {
			return err
		}
	}
	return nil
}
