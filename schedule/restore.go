package schedule

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/timerd-io/timerd/keys"
)

// restorePage bounds the entries of the index restored by one call, about: it takes Redis no longer than a page of an
// audit.
const restorePage = 100

// Torn is a partition in which timers and records do not match: somebody has removed keys of the index, or members of
// them. No step does that.
type Torn struct {
	Partition keys.Partition
	Missing   int64 // members or records, at least
}

// Restored is the repairs in a partition.
type Restored struct {
	Timers int64 // timers and firings that were put back by their records
	// timers and firings without a record: they fire without a payload, unless an audit finds it in their keys
	Bare    int64
	Dropped int64  // records that were left by a refused claim, and timers whose keys have lost their TTLs
	Unknown int64  // records that are of no timer, and left alone: a later version of timerd may have a use for them
	Due     Millis // of the first timer, or Nothing
}

// Add adds other to r.
func (r *Restored) Add(other Restored) {
	r.Timers += other.Timers
	r.Bare += other.Bare
	r.Dropped += other.Dropped
	r.Unknown += other.Unknown
	r.Due = other.Due
}

// Restore puts timers and firings of a partition back that one half of the index has lost, from the other half. A timer
// whose key is gone is due at once: it may have run out meanwhile. Restored firings can be claimed after a lease. It
// may be repeated, and run by several timerds at once.
func (n *Node) Restore(ctx context.Context, p keys.Partition, lease time.Duration) (all Restored, err error) {
	s := n.schedule
	for _, half := range []string{"data", "due", "firingdata", "firing"} {
		for cursor, more := uint64(0), true; more; more = cursor != 0 {
			args := []any{half, cursor, restorePage, lease.Milliseconds()}
			reply, err := ReadReply(s.Run(ctx, s.step("restore"), []Call{{Partition: p, Args: args}})[0], 6, 0)
			if err == nil {
				cursor, err = strconv.ParseUint(reply.Text(0), 10, 64)
			}
			if err != nil {
				return all, fmt.Errorf("schedule: restore: %w", err)
			}
			all.Add(Restored{
				Timers: reply.Int(1), Bare: reply.Int(2), Dropped: reply.Int(3), Unknown: reply.Int(4),
				Due: Millis(reply.Int(5)),
			})
		}
	}
	return all, nil
}
