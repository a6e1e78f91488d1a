package schedule

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/timerd-io/timerd/keys"
)

// restorePage is how many entries of the index one call puts into order, about: few enough to take Redis no longer than a page of an
// audit.
const restorePage = 100

// Torn is a partition in which timers and their records do not match: somebody has removed keys of the index, or members of them. No
// step does that.
type Torn struct {
	Partition keys.Partition
	Missing   int64 // members or records, at least
}

// Restored is what was put into order in a partition.
type Restored struct {
	Timers int64  // timers and firings that were put back by their records
	Bare   int64  // those whose record is lost: they fire without a payload, unless an audit finds it in their keys
	Due    Millis // of the first timer, or Nothing
}

// Restore puts timers and firings of a partition back that the index has lost, as far as the other half of it tells of them. A timer
// whose key is gone is due at once: it may have run out meanwhile. Firings that are put back can be claimed after a lease.
// It may be repeated, and run by several timerds at once.
func (n *Node) Restore(ctx context.Context, p keys.Partition, lease time.Duration) (all Restored, err error) {
	s := n.schedule
	for _, half := range []string{"data", "due", "firingdata", "firing"} {
		for cursor, more := uint64(0), true; more; more = cursor != 0 {
			args := []any{half, cursor, restorePage, lease.Milliseconds()}
			reply, err := ReadReply(s.Run(ctx, s.step("restore"), []Call{{Partition: p, Args: args}})[0], 4, 0)
			if err == nil {
				cursor, err = strconv.ParseUint(reply.Text(0), 10, 64)
			}
			if err != nil {
				return all, fmt.Errorf("schedule: restore: %w", err)
			}
			all.Timers, all.Bare, all.Due = all.Timers+reply.Int(1), all.Bare+reply.Int(2), Millis(reply.Int(3))
		}
	}
	return all, nil
}
