package schedule

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// AsideCounts is how many timers are set aside: because timerd may not read the key, and because NATS does not take the subject.
type AsideCounts struct{ Rights, Refused int64 }

// Add adds other to c.
func (c *AsideCounts) Add(other AsideCounts) {
	c.Rights += other.Rights
	c.Refused += other.Refused
}

// DueScan is what a scan for due timers found.
type DueScan struct {
	Pending, Firing int64            // pending timers; firings that are owed or claimed
	Held            int64            // timers that are due and held
	Aside           AsideCounts      // those of them that are set aside
	Heads           []Head           // the partitions with something to claim within the time that was asked for
	Moving          []keys.Partition // those that are not there as a whole, and hold still

	at Millis // when the server looked
}

// ScanDue looks through all partitions of the node for those in which something is to be claimed now or within the time.
// Tombstones that are older than a minute and the lease count too: a claim removes them.
func (n *Node) ScanDue(ctx context.Context, within, lease time.Duration) (DueScan, error) {
	found, err := n.schedule.ScanMaster(ctx, n.Master(), within, lease)
	if err == nil && found.at > 0 {
		n.evidence.witness(found.at, time.Now())
	}
	return found, err
}

// Forever is longer than any timer waits. A scan that looks so far tells of partitions with nothing but held timers too.
const Forever = 100 * 365 * 24 * time.Hour

// ScanMaster is [Node.ScanDue] for a master.
func (ix *Index) ScanMaster(ctx context.Context, m Master, within, lease time.Duration) (DueScan, error) {
	var found DueScan
	horizon := within.Milliseconds()
	if within == Forever {
		horizon = 2 * heldScore
	}
	args := []any{horizon, lease.Milliseconds()}
	err := m.RunOver(ctx, ix.scripts.Load().scanDue, Chunk, args, func(cmd *redis.Cmd) error {
		reply, err := cmd.Slice()
		if err != nil {
			return err
		}
		if len(reply) < 6 || len(reply)%2 != 0 {
			return fmt.Errorf("unexpected reply of %d elements", len(reply))
		}
		at, _ := reply[0].(int64)
		pending, _ := reply[1].(int64)
		firing, _ := reply[2].(int64)
		found.at = Millis(at)
		found.Pending += pending
		found.Firing += firing
		rights, _ := reply[3].(int64)
		refused, _ := reply[4].(int64)
		found.Aside.Add(AsideCounts{Rights: rights, Refused: refused})
		held, _ := reply[5].(int64)
		found.Held += held
		for i := 6; i < len(reply); i += 2 {
			hashTag, _ := reply[i].(string)
			due, _ := reply[i+1].(int64)
			if due < 0 {
				found.Moving = append(found.Moving, keys.Partition(hashTag))
			} else {
				found.Heads = append(found.Heads, Head{keys.Partition(hashTag), Millis(due)})
			}
		}
		return nil
	})
	if err != nil {
		return found, fmt.Errorf("schedule: scan for due timers: %w", err)
	}
	return found, nil
}
