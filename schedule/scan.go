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
	Leases          []Head           // those of them with firings, and when the first of these can be claimed
	Moving          []keys.Partition // the partitions whose slots are moving: nothing in them changes meanwhile
	Torn            []Torn           // the partitions that have lost something, of those that were looked at in full

	at Millis // when the server looked
}

// ScanDue looks through all partitions of the node for those with something to claim now or within a time. Tombstones
// older than a minute and the lease count too: a claim removes them.
func (n *Node) ScanDue(ctx context.Context, within, lease time.Duration) (DueScan, error) {
	sent := time.Now()
	found, err := n.schedule.ScanMaster(ctx, n.Master(), within, lease)
	if err == nil && found.at > 0 {
		n.witness(found.at, sent, time.Now())
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
		reply, err := ReadReply(cmd, 6, 3)
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
)

// Look is what a sweep looks for.
type Look struct {
	Within time.Duration // how far ahead what is due counts
	Lease  time.Duration
	// Every is after what time at most each partition of a cluster is looked at, whatever is known of it: at most a lease.
	Every time.Duration
	All   bool // all partitions are looked at, as nothing is known of them
}

// Sweep is ScanDue for the regular look. In a cluster it asks what the function library has set since it was asked last, and looks for
// what is due, and for leases that end, in those partitions whose turn it is: all of them where the library cannot tell. Counts, and what
// is to be removed, are looked for once in so many calls; the counts are of when each was looked at. It is for one goroutine.
func (n *Node) Sweep(ctx context.Context, l Look) (DueScan, error) {
	if !n.schedule.cluster {
		found, err := n.ScanDue(ctx, l.Within, l.Lease)
		found.Leases = nil // claims look for them
		return found, err
	}
	m := n.Master()
	r := &n.round
	first := len(r.partitions) != len(m.Partitions) || len(m.Partitions) > 0 && &r.partitions[0] != &m.Partitions[0]
	if first {
		*r = newRound(m.Partitions, l.Every)
	}
	r.sweeps++
	found, told := n.askNoted(ctx) // before it looks: what is set meanwhile is told the next time
	all := first || l.All || !told
	for i := range r.chunks {
		c := &r.chunks[i]
		seen, err := n.sweepChunk(ctx, c, l, first || c.torn || (r.sweeps+i)%fullEach == 0, all)
		if err != nil {
			r.partitions = nil // all anew
			return found, err
		}
		found.Heads, found.Leases, found.Moving = append(found.Heads, seen.Heads...), append(found.Leases, seen.Leases...), append(found.Moving, c.moving...)
		found.Torn = append(found.Torn, seen.Torn...)
		found.Pending, found.Firing, found.Held = found.Pending+c.counted.Pending, found.Firing+c.counted.Firing, found.Held+c.counted.Held
		found.Parked.Add(c.counted.Parked)
	}
	if len(found.Moving) > 0 {
		n.schedule.Reload(ctx) // they may be elsewhere by now, of which the master that is asked has not heard
	}
	return found, nil
}

// round is how far the sweeps of a node of a cluster have come.
type round struct {
	partitions []keys.Partition
	chunks     []roundChunk
	sweeps     int
	since      string // what the library said when it was asked last for what it has set, and where that ended
	noted      int64
}

// roundChunk is some of the partitions of a round.
type roundChunk struct {
	partitions []keys.Partition
	tags       string           // their hash tags, one after the other
	counted    DueScan          // the counts alone
	looked     time.Time        // when it was asked for all that is to be claimed, in full or not
	moving     []keys.Partition // as it was then
	torn       bool             // one of them has lost something: they are looked at in full with the next sweep, too
}

// newRound begins a round. The chunks have their turns one after the other within a time.
func newRound(partitions []keys.Partition, every time.Duration) round {
	r := round{partitions: partitions}
	all := (len(partitions) + sweepChunk - 1) / sweepChunk
	for part := range slices.Chunk(partitions, sweepChunk) {
		var tags strings.Builder
		for _, p := range part {
			tags.WriteString(string(p))
		}
		ago := every * time.Duration(len(r.chunks)) / time.Duration(all)
		r.chunks = append(r.chunks, roundChunk{partitions: part, tags: tags.String(), looked: time.Now().Add(-ago)})
	}
	return r
}

// askNoted asks the function library what it has set since it was asked last, and returns whether it can tell.
func (n *Node) askNoted(ctx context.Context) (found DueScan, told bool) {
	r := &n.round
	reply, err := ReadReply(n.server.FCallRO(ctx, "timer_noted", nil, r.since, r.noted, n.ClaimedChannel()), 3, 2)
	if err != nil { // it is not loaded, or this timerd may not call it; else what follows fails, too
		r.since = ""
		return found, false
	}
	r.since, r.noted = reply.Text(0), reply.Int(1)
	for i := 3; i+1 < len(reply); i += 2 {
		found.Heads = append(found.Heads, Head{keys.Partition(reply.Text(i)), Millis(reply.Int(i + 1))})
	}
	return found, reply.Int(2) == 1
}

// noteMoved has the function library tell all timerds that something in a partition of a cluster became due at another time. It is for
// what may be done by a program other than a timerd. Should that fail, they find it as they find what a timerd had set that died.
func (s *Schedule) noteMoved(ctx context.Context, p keys.Partition) {
	if !s.cluster {
		return
	}
	if server, err := s.topology.server(ctx, p); err == nil {
		_ = server.FCallRO(ctx, "timer_moved", []string{p.Prefix()}).Err() // see above
	}
}

// sweepChunk looks at some partitions: in full, or if it is their turn, or for what is due alone.
func (n *Node) sweepChunk(ctx context.Context, c *roundChunk, l Look, full, all bool) (seen DueScan, err error) {
	// As far ahead as leases reach: which others have claimed was not told here, nor what others have set.
	ahead, now := l.Within+l.Lease, time.Now()
	switch isTurn := now.Sub(c.looked) >= l.Every; {
	case full:
		part := n.Master()
		part.Partitions = c.partitions
		seen, err = n.schedule.ScanMaster(ctx, part, ahead, l.Lease)
		c.counted = DueScan{Pending: seen.Pending, Firing: seen.Firing, Held: seen.Held, Parked: seen.Parked}
		if !all { // else the chunks would have their turns at once from then on
			c.looked = now
		}
	case isTurn:
		seen, err = n.scanHeads(ctx, c.tags, ahead, ahead.Milliseconds())
		c.looked = now
	case all || len(c.moving) > 0:
		seen, err = n.scanHeads(ctx, c.tags, ahead)
	default:
		return seen, nil
	}
	if err == nil {
		c.moving, c.torn = seen.Moving, len(seen.Torn) > 0
		n.witness(seen.at, now, time.Now())
	}
	return seen, err
}

// scanHeads looks for what is due within a time, and if another one is given for leases that end within that, in ms.
func (n *Node) scanHeads(ctx context.Context, tags string, within time.Duration, leases ...any) (found DueScan, err error) {
	args := append([]any{tags, within.Milliseconds()}, leases...)
	reply, err := ReadReply(n.schedule.step("scan_heads").Run(ctx, n.server, nil, args...), 1, 3)
	if err != nil {
		return found, fmt.Errorf("schedule: scan for due timers: %w", err)
	}
	found.at = Millis(reply.Int(0))
	found.addHeads(reply[1:])
	return found, nil
}

// DueFor returns the node's master with only the partitions that have a timer due for longer than a time, or a firing.
// On one server it returns them all, without a look.
func (n *Node) DueFor(ctx context.Context, since time.Duration) (Master, error) {
	m := n.Master()
	if !n.schedule.cluster {
		return m, nil
	}
	some := m
	some.Partitions = nil
	err := m.eachChunk(sweepChunk, func(hashTags []any) error {
		found, err := n.scanHeads(ctx, fmt.Sprint(hashTags...), -since, Forever.Milliseconds())
		for _, h := range found.Heads {
			some.Partitions = append(some.Partitions, h.Partition)
		}
		return err
	})
	return some, err
}

// tornMark is what a scan returns instead of a due time for a partition that has lost something.
const tornMark = -2

// addHeads takes in of each of some partitions when something is to be claimed there, negative if it is not there as a whole, and when
// the first lease ends, if any does; and of some how much they have lost.
func (d *DueScan) addHeads(rows Reply) {
	for i := 0; i+2 < len(rows); i += 3 {
		p, due := keys.Partition(rows.Text(i)), Millis(rows.Int(i+1))
		switch {
		case due == tornMark:
			d.Torn = append(d.Torn, Torn{p, rows.Int(i + 2)})
			continue
		case due < 0:
			d.Moving = append(d.Moving, p)
			continue
		}
		d.Heads = append(d.Heads, Head{p, due})
		if ends := Millis(rows.Int(i + 2)); ends >= 0 {
			d.Leases = append(d.Leases, Head{p, ends})
		}
	}
}
