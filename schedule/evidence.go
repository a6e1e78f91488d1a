package schedule

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/timerd-io/timerd/keys"
)

const (
	// maxSilence is for how long the server's clock may go unread. In longer times it may have been ahead and back again.
	maxSilence = 5 * time.Second
	// markTTL is how long a mark is kept after it was written last.
	markTTL = 30 * 24 * time.Hour
	// markTimeout bounds the look for a mark.
	markTimeout = time.Second
)

// evidence is what a node knows of why keys may be absent. A key that is gone before its time was deleted, if nothing
// else happened to the server's keys since an audit last looked at all of them: no restart, no eviction, and no clock that
// was ahead for a while. It may be used concurrently.
type evidence struct {
	mu sync.Mutex
	// losses is the text of losses.lua as the last complete audit began. It is empty if none has been made since the
	// clock was unread for too long.
	losses  string
	audited slots // of the partitions that this audit looked at
	silent  int   // how often the clock was unread for too long
	asked   bool  // it has been found out whether the last mark still holds, or nobody will

	reading Millis    // the last reading of the clock
	read    time.Time // the local instant of it; zero before any
	highest Millis    // the latest time that the clock may have shown so far
}

// witness takes in that the server's clock showed a time when it was read at a local instant.
func (e *evidence) witness(at Millis, local time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if local.Before(e.read) {
		return
	}
	if local.Sub(e.read) > maxSilence {
		e.losses = ""
		e.silent++
	} else {
		// If the clock was set back since, it had gone on until then.
		e.highest = max(e.highest, e.reading.Add(local.Sub(e.read)))
	}
	e.reading, e.read, e.highest = at, local, max(e.highest, at)
}

// latest returns the latest time that the clock may have shown so far.
func (e *evidence) latest() Millis {
	e.mu.Lock()
	defer e.mu.Unlock()
	return max(e.highest, e.reading.Add(time.Since(e.read)))
}

// proof returns for a partition the text of losses that still holds if the absence of a key proves that it was deleted; it
// is empty if nothing proves that.
func (e *evidence) proof(p keys.Partition) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.audited.has(p.Slot()) {
		return ""
	}
	return e.losses
}

// know says that an audit of some slots is complete that began when losses were as given and the clock had been unread for
// too long as often as given.
func (e *evidence) know(losses string, audited slots, silent int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if silent == e.silent {
		e.losses, e.audited = losses, audited
	}
}

// keep forgets the slots that are not on the server any more: what happens to their keys elsewhere is not known here.
func (e *evidence) keep(here slots) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.audited {
		e.audited[i] &= here[i]
	}
}

// known returns the text of losses, the slots for which it holds, and how often the clock was unread for too long.
func (e *evidence) known() (losses string, audited slots, silent int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.losses, e.audited, e.silent
}

// ask says that it has been found out whether the last mark still holds.
func (e *evidence) ask() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked = true
}

// wasAsked tells whether ask was called.
func (e *evidence) wasAsked() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.asked
}

// slots is a set of hash slots, a bit for each.
type slots [1 << 14 / 64]uint64

// slotsOf returns the slots of partitions.
func slotsOf(partitions []keys.Partition) slots {
	var s slots
	for _, p := range partitions {
		s.add(p.Slot())
	}
	return s
}

func (s *slots) add(slot int) { s[slot/64] |= 1 << (slot % 64) }

func (s *slots) has(slot int) bool { return s[slot/64]>>(slot%64)&1 == 1 }

// rows returns the first and the last of each row of slots that follow each other.
func (s *slots) rows() [][2]int {
	var rows [][2]int
	for slot := range len(s) * 64 {
		switch n := len(rows); {
		case !s.has(slot):
		case n > 0 && rows[n-1][1] == slot-1:
			rows[n-1][1] = slot
		default:
			rows = append(rows, [2]int{slot, slot})
		}
	}
	return rows
}

// slotsIn returns the slots in rows; those that cannot be are left out.
func slotsIn(rows [][2]int) slots {
	var s slots
	for _, row := range rows {
		for slot := max(row[0], 0); slot <= row[1] && slot < len(s)*64; slot++ {
			s.add(slot)
		}
	}
	return s
}

// mark is what timerds leave in Redis for the next one that starts, under the run id of the server.
type mark struct {
	Losses string `json:"losses"`
	// Expired is how many keys of the server will have run out, by its own count, when the canary has and no other key.
	Expired int64  `json:"expired"`
	Canary  string `json:"canary"`
	// Slots are the first and the last of each row of slots that were audited.
	Slots [][2]int `json:"slots"`
}

// Mark leaves a mark in Redis: what a timerd that starts when none has run for a while compares with, to know whether anything
// ran out meanwhile. Call it after a canary was sent, whose key runs out soon, with what the server said of itself just
// before: INFO's sections server and stats. While an audit is still to come nothing is left. An older mark does no harm.
func (n *Node) Mark(ctx context.Context, info, canary string) error {
	losses, audited, _ := n.evidence.known()
	run := infoField(info, "run_id")
	if losses == "" || runOf(losses) != run {
		return nil
	}
	expired, err := strconv.ParseInt(infoField(info, "expired_keys"), 10, 64)
	if err != nil {
		return fmt.Errorf("schedule: read how many keys ran out: %w", err)
	}
	text, err := json.Marshal(mark{Losses: losses, Expired: expired + 1, Canary: canary, Slots: audited.rows()})
	if err == nil {
		err = n.schedule.rdb.Set(ctx, keys.MarkKey(run), text, markTTL).Err()
	}
	if err != nil {
		return fmt.Errorf("schedule: leave a mark: %w", err)
	}
	return nil
}

// recall finds out, unless it is known already, whether nothing but deletions went unnoticed since the last mark. Call it
// when events are heard and before canaries are sent: what runs out from then on is heard. Where the mark cannot be had,
// nothing is known; the next audit makes up for that.
func (n *Node) recall(ctx context.Context) error {
	if losses, _, _ := n.evidence.known(); losses != "" {
		return nil
	}
	state, err := n.readLosses(ctx)
	if err != nil {
		return err
	}
	var m mark
	within, cancel := context.WithTimeout(ctx, markTimeout) // in a cluster it may be on a server that hangs
	defer cancel()
	text, err := n.schedule.rdb.Get(within, keys.MarkKey(runOf(state.text))).Bytes()
	if err != nil || json.Unmarshal(text, &m) != nil {
		return nil // see above
	}
	// If the canary runs out now, or is found to have run out, it counts as one more.
	waiting, err := n.server.Exists(within, m.Canary).Result()
	if err != nil {
		return nil // its slot has moved, perhaps
	}
	if state, err = n.readLosses(ctx); err == nil && state.expired+waiting == m.Expired {
		n.evidence.know(m.Losses, slotsIn(m.Slots), state.silent)
	}
	return err
}

// losses is what read_losses.lua returns, and how often the clock was unread for too long by then.
type losses struct {
	text    string
	expired int64
	silent  int
}

func (n *Node) readLosses(ctx context.Context) (losses, error) {
	reply, err := n.schedule.step("read_losses").Run(ctx, n.server, nil).Slice()
	if err == nil && len(reply) != 3 {
		err = fmt.Errorf("unexpected reply of %d elements", len(reply))
	}
	if err != nil {
		return losses{}, fmt.Errorf("schedule: read how keys may have vanished: %w", err)
	}
	at, _ := reply[0].(int64)
	n.evidence.witness(Millis(at), time.Now())
	text, _ := reply[1].(string)
	expired, _ := reply[2].(int64)
	_, _, silent := n.evidence.known()
	return losses{text, expired, silent}, nil
}

// runOf returns the run id of the server that a text of losses is about.
func runOf(losses string) string {
	run, _, _ := strings.Cut(losses, " ")
	return run
}
