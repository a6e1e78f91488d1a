package schedule

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// appsChunk bounds the partitions whose apps one call reads: each may know a thousand.
const appsChunk = 16

// OtherApps stands for all apps beyond those known by name to a partition.
const OtherApps = ""

// Apps returns the apps for which timers with keys on the node were set through the function library or by a retry,
// those known longest first. An app without timers is forgotten after some audits. OtherApps may be among them.
func (n *Node) Apps(ctx context.Context) ([]string, error) {
	since := map[string]int64{}
	err := n.Master().RunOver(ctx, n.schedule.step("apps"), appsChunk, nil, func(cmd *redis.Cmd) error {
		reply, err := ReadReply(cmd, 0, 2)
		for i := 0; i+1 < len(reply); i += 2 {
			app, at := reply.Text(i), reply.Int(i+1)
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
