package schedule

import (
	"context"
	"fmt"
	"strconv"

	"github.com/timerd-io/timerd/keys"
)

// scanCount is how many keys one step of SCAN looks at, about: half a millisecond of Redis's time.
const scanCount = 1000

// ScanKeys calls yield for the keys of the node's server that match a glob pattern, some at a time, until it returns an error.
// Keys that are set or deleted meanwhile may be left out or come twice.
func (n *Node) ScanKeys(ctx context.Context, glob string, yield func(names []string) error) error {
	for cursor := uint64(0); ; {
		names, next, err := n.server.Scan(ctx, cursor, glob, scanCount).Result()
		if err != nil {
			return fmt.Errorf("schedule: scan the keys: %w", err)
		}
		if err := yield(names); err != nil {
			return err
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// AuditPage compares about count pending timers of a partition with their keys, from cursor on; 0 begins, and a returned 0
// ends. mayEvict says that keys may have been evicted, so that a key's absence does not mean that it was deleted. A whole round
// looks at every timer that is pending throughout at least once.
func (n *Node) AuditPage(ctx context.Context, p keys.Partition, cursor uint64, count int, mayEvict bool) (next uint64, seen Observed, err error) {
	evict := 0
	if mayEvict {
		evict = 1
	}
	for left := count; ; left-- { // each call gets further, unless somebody goes on changing these keys
		reply, err := n.schedule.run(ctx, n.schedule.scripts.audit, []call{{p, []any{cursor, count, evict}}})[0].Slice()
		if err != nil {
			return 0, seen, fmt.Errorf("schedule: audit: %w", err)
		}
		if len(reply) != 5 {
			return 0, seen, fmt.Errorf("schedule: audit: unexpected reply of %d elements", len(reply))
		}
		text, _ := reply[0].(string)
		rescheduled, _ := reply[2].(int64)
		cancelled, _ := reply[3].(int64)
		seen.Add(Observed{Rescheduled: int(rescheduled), Cancelled: int(cancelled)})
		if again, _ := reply[4].(int64); again == 1 && left > 0 {
			continue
		}
		if next, err = strconv.ParseUint(text, 10, 64); err != nil {
			return 0, seen, fmt.Errorf("schedule: audit: unexpected cursor: %w", err)
		}
		return next, seen, nil
	}
}

// MayEvict tells whether the server may evict keys, so that a key's absence does not mean that it was deleted.
func (n *Node) MayEvict(ctx context.Context) (bool, error) {
	info, err := n.server.Info(ctx, "memory").Result()
	if err != nil {
		return false, fmt.Errorf("schedule: read the eviction policy: %w", err)
	}
	limit, policy := infoField(info, "maxmemory"), infoField(info, "maxmemory_policy")
	return limit != "0" && policy != "noeviction", nil
}
