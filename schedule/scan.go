package schedule

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// ParkedCounts is how many timers are parked: because timerd may not read the key, and because NATS does not take the
// subject.
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
	Parked          ParkedCounts     // those of them that are parked
	Heads           []Head           // the partitions with something to claim within the time that was asked for
	Moving          []keys.Partition // the partitions whose slots are moving: nothing in them changes meanwhile

	at Millis // when the server looked
}

// ScanDue looks through all partitions of the node for those with something to claim now or within a time. Tombstones
// older than a minute and the lease count too: a claim removes them.
func (n *Node) ScanDue(ctx context.Context, within, lease time.Duration) (DueScan, error) {
	found, err := n.schedule.ScanMaster(ctx, n.Master(), within, lease)
	if err == nil && found.at > 0 {
		n.evidence.witness(found.at, time.Now())
	}
	return found, err
}

// Forever is longer than any timer waits. A scan that looks so far ahead also reports partitions with only held timers.
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
		found.addHeads(reply[6:])
		return nil
	})
	if err != nil {
		return found, fmt.Errorf("schedule: scan for due timers: %w", err)
	}
	return found, nil
}

const (
	// fullEach is in how many sweeps each partition of a cluster is looked at in full once, where otherwise only what is due is.
	fullEach = 30
	// sweepChunk is how many partitions of a cluster one call of a sweep asks for: that takes Redis two or three ms.
	sweepChunk = 2 * Chunk
	// claimedEach is after what time at most a sweep looks for leases that end, and for what is owed, in a partition of a cluster again.
	claimedEach = 5 * time.Second
)

// Sweep is ScanDue for the regular look. In a cluster it looks for what is due in all partitions at each call, for leases that end twice in
// a lease or more often, and counts and looks for what is to be removed once in so many calls. The counts are of when each was
// looked at. It is for one goroutine.
func (n *Node) Sweep(ctx context.Context, within, lease time.Duration) (DueScan, error) {
	if !n.schedule.cluster {
		return n.ScanDue(ctx, within, lease)
	}
	m := n.Master()
	r := &n.round
	first := len(r.partitions) != len(m.Partitions) || len(m.Partitions) > 0 && &r.partitions[0] != &m.Partitions[0]
	if first {
		*r = round{partitions: m.Partitions, counted: make([]DueScan, (len(m.Partitions)+sweepChunk-1)/sweepChunk)}
		for part := range slices.Chunk(m.Partitions, sweepChunk) {
			var tags strings.Builder
			for _, p := range part {
				tags.WriteString(string(p))
			}
			// Each next time it is another part of them.
			since := claimedEach * time.Duration(len(r.tags)) / time.Duration(len(r.counted))
			r.tags, r.claimed = append(r.tags, tags.String()), append(r.claimed, time.Now().Add(-since))
		}
	}
	r.sweeps++
	var found DueScan
	for i := range r.counted {
		part := m
		part.Partitions = m.Partitions[i*sweepChunk : min((i+1)*sweepChunk, len(m.Partitions))]
		var seen DueScan
		var err error
		if first || (r.sweeps+i)%fullEach == 0 {
			// As far ahead as leases reach: which others have claimed was not told here.
			seen, err = n.schedule.ScanMaster(ctx, part, within+lease, lease)
			r.counted[i] = DueScan{Pending: seen.Pending, Firing: seen.Firing, Held: seen.Held, Parked: seen.Parked}
		} else {
			claimedWithin := time.Duration(-1)
			if now := time.Now(); now.Sub(r.claimed[i]) >= min(lease/2, claimedEach) {
				claimedWithin, r.claimed[i] = within+lease, now
			}
			seen, err = n.scanHeads(ctx, r.tags[i], within, claimedWithin)
		}
		if err != nil {
			r.partitions = nil // all anew
			return found, err
		}
		n.evidence.witness(seen.at, time.Now())
		found.Heads, found.Moving = append(found.Heads, seen.Heads...), append(found.Moving, seen.Moving...)
	}
	for _, c := range r.counted {
		found.Pending, found.Firing, found.Held = found.Pending+c.Pending, found.Firing+c.Firing, found.Held+c.Held
		found.Parked.Add(c.Parked)
	}
	return found, nil
}

// round is how far the sweeps of a node of a cluster have come.
type round struct {
	partitions []keys.Partition
	counted    []DueScan   // of each chunk of them, the counts alone
	tags       []string    // of each chunk, the hash tags one after the other
	claimed    []time.Time // of each chunk, when it was asked for what is claimed or owed
	sweeps     int
}

// scanHeads looks for what is due within a time, and for leases that end within another unless that is negative.
func (n *Node) scanHeads(ctx context.Context, tags string, within, claimedWithin time.Duration) (found DueScan, err error) {
	args := []any{tags, within.Milliseconds()}
	if claimedWithin >= 0 {
		args = append(args, claimedWithin.Milliseconds())
	}
	reply, err := ReadReply(n.schedule.step("scan_heads").Run(ctx, n.server, nil, args...), 1, 2)
	if err != nil {
		return found, fmt.Errorf("schedule: scan for due timers: %w", err)
	}
	found.at = Millis(reply.Int(0))
	found.addHeads(reply[1:])
	return found, nil
}

// addHeads takes in pairs of a partition and when something is to be claimed there, negative if it is not there as a whole.
func (d *DueScan) addHeads(pairs Reply) {
	for i := 0; i+1 < len(pairs); i += 2 {
		p, due := keys.Partition(pairs.Text(i)), Millis(pairs.Int(i+1))
		if due < 0 {
			d.Moving = append(d.Moving, p)
		} else {
			d.Heads = append(d.Heads, Head{p, due})
		}
	}
}
