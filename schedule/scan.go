package schedule

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// ParkedCounts are the numbers of parked timers: timerd may not read the key, NATS does not take the subject, or timerd
// may not read the guard.
type ParkedCounts struct{ Rights, Refused, Guard int64 }

// Add adds other to c.
func (c *ParkedCounts) Add(other ParkedCounts) {
	c.Rights += other.Rights
	c.Refused += other.Refused
	c.Guard += other.Guard
}

// DueScan is the result of a scan for due timers.
type DueScan struct {
	Pending, Firing int64            // pending timers; firings that are owed or claimed
	Held            int64            // timers that are due and held
	Parked          ParkedCounts     // parked timers among all these
	Heads           []Head           // partitions with timers to claim within the given time
	Leases          []Head           // partitions among Heads with firings, and when the first of these can be claimed
	Moving          []keys.Partition // the partitions whose slots are moving: nothing in them changes meanwhile
	Torn            []Torn           // torn partitions, of those searched in full

	at Millis // when the server looked
}

// ScanDue searches all partitions of the node for timers to claim now or within a time. Tombstones older than a minute
// and the lease count too: a claim removes them.
func (n *Node) ScanDue(ctx context.Context, within, lease time.Duration) (DueScan, error) {
	sent := time.Now()
	found, err := n.schedule.ScanMaster(ctx, n.Master(), within, lease)
	if err == nil && found.at > 0 {
		n.witnessDue(found.at, sent, time.Now())
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
		reply, err := ReadReply(cmd, 7, 3)
		if err != nil {
			return err
		}
		found.at = Millis(reply.Int(0))
		found.Pending += reply.Int(1)
		found.Firing += reply.Int(2)
		found.Parked.Add(ParkedCounts{Rights: reply.Int(3), Refused: reply.Int(4), Guard: reply.Int(5)})
		found.Held += reply.Int(6)
		found.addHeads(reply[7:])
		return nil
	})
	if err != nil {
		return found, fmt.Errorf("schedule: scan for due timers: %w", err)
	}
	return found, nil
}

const (
	// fullEach is the number of sweeps between two full searches of each partition of a cluster; the others search
	// for due timers alone.
	fullEach = 30
	// sweepChunk bounds the partitions of a cluster in one call of a sweep: that takes Redis two or three ms.
	sweepChunk = 2 * Chunk
)

// Look is the reach of a sweep.
type Look struct {
	Within time.Duration // a timer due within it counts
	Lease  time.Duration
	// Every is the longest time between two looks at each partition of a cluster: at most a lease.
	Every time.Duration
	All   bool // all partitions are looked at, as nothing is known of them
}

// Sweep is ScanDue for the regular look. In a cluster it asks the function library which timers it has set since the
// last question, and searches the partitions whose turn it is for due timers and ending leases: all of them if the
// library cannot answer. Counts, and leftovers to remove, are searched for once in so many calls; each count has the
// age of its search. It is for one goroutine.
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
		n.busy.forget()
	}
	r.sweeps++
	found, told := n.askNoted(ctx) // before the search: timers set meanwhile come the next time
	all := first || l.All || !told
	for i := range r.chunks {
		c := &r.chunks[i]
		seen, err := n.sweepChunk(ctx, c, l, first || c.torn || (r.sweeps+i)%fullEach == 0, all)
		if err != nil {
			r.partitions = nil // all anew
			return found, err
		}
		found.Heads, found.Leases, found.Moving = append(found.Heads, seen.Heads...), append(found.Leases,
			seen.Leases...), append(found.Moving, c.moving...)
		found.Torn = append(found.Torn, seen.Torn...)
		found.Pending += c.counted.Pending
		found.Firing += c.counted.Firing
		found.Held += c.counted.Held
		found.Parked.Add(c.counted.Parked)
	}
	if len(found.Moving) > 0 {
		n.schedule.Reload(ctx) // they may be elsewhere by now, unknown to this master
	}
	return found, nil
}

// round is the progress of the sweeps of a node of a cluster.
type round struct {
	partitions []keys.Partition
	chunks     []roundChunk
	sweeps     int
	since      string // cursor returned by the last timer_noted call
	noted      int64
}

// roundChunk is some of the partitions of a round.
type roundChunk struct {
	partitions []keys.Partition
	tags       string           // their hash tags, one after the other
	counted    DueScan          // the counts alone
	looked     time.Time        // last search for timers to claim, in full or not
	moving     []keys.Partition // as it was then
	torn       bool             // one of them is torn: the next sweep searches them in full too
}

// newRound begins a round. The chunks have their turns one after the other within a time.
func newRound(partitions []keys.Partition, every time.Duration) round {
	r := round{partitions: partitions}
	all := (len(partitions) + sweepChunk - 1) / sweepChunk
	for part := range slices.Chunk(partitions, sweepChunk) {
		ago := every * time.Duration(len(r.chunks)) / time.Duration(all)
		r.chunks = append(r.chunks, roundChunk{partitions: part, tags: tagsOf(part), looked: time.Now().Add(-ago)})
	}
	return r
}

// tagsOf returns the hash tags of partitions, one after the other.
func tagsOf(partitions []keys.Partition) string {
	var tags strings.Builder
	for _, p := range partitions {
		tags.WriteString(string(p))
	}
	return tags.String()
}

// busyParts is the partitions of a node that had something due or in firing at the last turn of their chunk. A timer
// that is overdue by more than the time since then was due at that turn: its partition is among them, unless the timer
// came into the index later. Then the next turn finds it. Its methods may be called concurrently.
type busyParts struct {
	mu     sync.Mutex
	chunks map[*keys.Partition]busyChunk // by their first partition in the node's list
}

type busyChunk struct {
	partitions []keys.Partition
	at         time.Time // before the search
}

func (b *busyParts) note(chunk []keys.Partition, found *DueScan, at time.Time) {
	busy := busyChunk{at: at}
	firing := make(map[keys.Partition]bool, len(found.Leases))
	for _, h := range found.Leases {
		firing[h.Partition] = true
	}
	for _, h := range found.Heads {
		if h.Due <= found.at || firing[h.Partition] {
			busy.partitions = append(busy.partitions, h.Partition)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.chunks == nil {
		b.chunks = map[*keys.Partition]busyChunk{}
	}
	b.chunks[&chunk[0]] = busy
}

// of returns the busy partitions of a chunk, and reports whether its last turn was within a time.
func (b *busyParts) of(chunk []keys.Partition, within time.Duration) ([]keys.Partition, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	busy, ok := b.chunks[&chunk[0]]
	return busy.partitions, ok && time.Since(busy.at) < within
}

func (b *busyParts) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.chunks)
}

// askNoted asks the function library which timers it has set since the last question, and reports whether it can
// answer.
func (n *Node) askNoted(ctx context.Context) (found DueScan, told bool) {
	r := &n.round
	reply, err := ReadReply(n.server.FCallRO(ctx, "timer_noted", nil, r.since, r.noted, n.ClaimedChannel()), 3, 2)
	if err != nil { // it is not loaded, or this timerd may not call it; otherwise the next call fails too
		r.since = ""
		return found, false
	}
	r.since, r.noted = reply.Text(0), reply.Int(1)
	for i := 3; i+1 < len(reply); i += 2 {
		found.Heads = append(found.Heads, Head{keys.Partition(reply.Text(i)), Millis(reply.Int(i + 1))})
	}
	return found, reply.Int(2) == 1
}

// noteMoved makes the function library tell all timerds of a changed due time in a partition of a cluster. It is for
// changes by programs other than a timerd. If it fails, they find the timer as they find one set by a dead timerd.
func (s *Schedule) noteMoved(ctx context.Context, p keys.Partition) {
	if !s.cluster {
		return
	}
	if server, err := s.topology.server(ctx, p); err == nil {
		_ = server.FCallRO(ctx, "timer_moved", []string{p.Prefix()}).Err() // see above
	}
}

// sweepChunk searches some partitions: in full, or if it is their turn, or for due timers alone.
func (n *Node) sweepChunk(ctx context.Context, c *roundChunk, l Look, full, all bool) (seen DueScan, err error) {
	// As far ahead as leases reach: claims and sets by others were not announced here.
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
		seen, err = n.scanHeads(ctx, c.tags, ahead, Forever.Milliseconds())
		c.looked = now
		if err == nil {
			n.busy.note(c.partitions, &seen, now)
		}
		tooLate := func(h Head) bool { return h.Due > seen.at+Millis(ahead.Milliseconds()) }
		seen.Heads, seen.Leases = slices.DeleteFunc(seen.Heads, tooLate), slices.DeleteFunc(seen.Leases, tooLate)
	case all || len(c.moving) > 0:
		seen, err = n.scanHeads(ctx, c.tags, ahead)
	default:
		return seen, nil
	}
	if err == nil {
		c.moving, c.torn = seen.Moving, len(seen.Torn) > 0
		n.witnessDue(seen.at, now, time.Now())
	}
	return seen, err
}

// scanHeads searches for timers due within a time, and with a second one for leases that end within that, in ms.
func (n *Node) scanHeads(ctx context.Context, tags string, within time.Duration, leases ...any) (found DueScan,
	err error) {
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
// A turn of the sweep within that time has seen those timers due already; other chunks it searches itself. On one
// server it returns all partitions, without a search.
func (n *Node) DueFor(ctx context.Context, since time.Duration) (Master, error) {
	m := n.Master()
	if !n.schedule.cluster {
		return m, nil
	}
	some := m
	some.Partitions = nil
	for chunk := range slices.Chunk(m.Partitions, sweepChunk) {
		busy, known := n.busy.of(chunk, since)
		if !known {
			busy = nil
			found, err := n.scanHeads(ctx, tagsOf(chunk), -since, Forever.Milliseconds())
			if err != nil {
				return some, err
			}
			for _, h := range found.Heads {
				busy = append(busy, h.Partition)
			}
		}
		some.Partitions = append(some.Partitions, busy...)
	}
	return some, nil
}

// tornMark is a scan's reply for a torn partition, in place of a due time.
const tornMark = -2

// addHeads takes rows of partitions: the next due time, negative for a torn partition, the end of the first lease if
// there is one, and for some the number of lost timers.
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
