package schedule

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// appsChunk is how many partitions one call reads the apps of: each may know a thousand.
const appsChunk = 16

// OtherApps stands for all apps beyond those that a partition knows by name.
const OtherApps = ""

// Apps returns the apps that timers with keys on the node were set for through the function library or by a retry, those
// that have been known for longest first. Apps that have no timers any more are forgotten after some audits. OtherApps may
// be among them.
func (n *Node) Apps(ctx context.Context) ([]string, error) {
	since := map[string]int64{}
	err := n.Master().RunOver(ctx, n.schedule.scripts.Load().apps, appsChunk, nil, func(cmd *redis.Cmd) error {
		reply, err := cmd.Slice()
		for i := 0; i+1 < len(reply); i += 2 {
			app, _ := reply[i].(string)
			at, _ := reply[i+1].(int64)
			if known, ok := since[app]; !ok || at < known {
				since[app] = at
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("schedule: read the apps: %w", err)
	}
	return slices.SortedFunc(maps.Keys(since), func(a, b string) int {
		if since[a] != since[b] {
			return int(since[a] - since[b])
		}
		return strings.Compare(a, b)
	}), nil
}

// DoubtApps ends an audit of all timers of a partition, which began at a time or later and met the timers of some apps. Of
// the known apps without timers it doubts those that it finds for the first time, and forgets those that were doubted before.
// An app is known again as soon as a timer of it is set.
func (n *Node) DoubtApps(ctx context.Context, p keys.Partition, began Millis, met []string) error {
	args := []any{int64(began)}
	for _, app := range met {
		args = append(args, app)
	}
	if err := n.schedule.Run(ctx, n.schedule.scripts.Load().doubtApps, []Call{{p, args}})[0].Err(); err != nil {
		return fmt.Errorf("schedule: forget apps without timers: %w", err)
	}
	return nil
}

// ForgetApps forgets the apps of those partitions of the node that have no pending timers.
func (n *Node) ForgetApps(ctx context.Context) error {
	err := n.Master().RunOver(ctx, n.schedule.scripts.Load().forgetApps, Chunk, nil, (*redis.Cmd).Err)
	if err != nil {
		return fmt.Errorf("schedule: forget apps without timers: %w", err)
	}
	return nil
}
