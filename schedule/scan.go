package schedule

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// ParkedCounts is how many timers are set aside: because timerd may not read the key, and because NATS does not take the subject.
type ParkedCounts struct{ Rights, Refused int64 }

// Add adds other to c.
func (c *ParkedCounts) Add(other ParkedCounts) {
	c.Rights += other.Rights
	c.Refused += other.Refused
}

// DueScan is what a scan for due timers found.
type DueScan struct {
	Pending, Firing int64            // pending timers; firings that are owed or claimed
	Held            int64            // timers that are due and held
	Parked          ParkedCounts     // those of them that are set aside
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
		horizon = int64(2 * heldScore)
	}
	args := []any{horizon, lease.Milliseconds()}
	err := m.RunOver(ctx, ix.step("scan_due"), Chunk, args, func(cmd *redis.Cmd) error {
		reply, err := ReadReply(cmd, 6, 2)
		if err != nil {
			return err
		}
		found.at = Millis(reply.Int(0))
		found.Pending += reply.Int(1)
		found.Firing += reply.Int(2)
		found.Parked.Add(ParkedCounts{Rights: reply.Int(3), Refused: reply.Int(4)})
		found.Held += reply.Int(5)
		for i := 6; i < len(reply); i += 2 {
			p, due := keys.Partition(reply.Text(i)), Millis(reply.Int(i+1))
			if due < 0 {
				found.Moving = append(found.Moving, p)
			} else {
				found.Heads = append(found.Heads, Head{p, due})
			}
		}
		return nil
	})
	if err != nil {
		return found, fmt.Errorf("schedule: scan for due timers: %w", err)
	}
	return found, nil
}
