package schedule

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// StartHearing records that every keyspace event of the server is heard from now on, until StopHearing. Call it once
// the subscription is confirmed and its messages are about to be read.
func (n *Node) StartHearing(ctx context.Context) error {
	if err := n.recall(ctx); err != nil {
		return err
	}
	now, err := n.readClock(ctx)
	if err != nil {
		return err
	}
	n.hearSince(now)
	return nil
}

// StopHearing records that events may be missed from now on.
func (n *Node) StopHearing() { n.hearSince(NoEvents) }

// hearSince notes that every keyspace event of the server has been heard since a time; NoEvents: they are not heard.
func (n *Node) hearSince(since Millis) {
	n.evidence.ask()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.heardSince = since
}

// witness takes a reading of the server's clock between two local instants. If the clock was set back, events were
// heard since that time at the latest: a later time would count as unheard until the clock shows it again.
func (n *Node) witness(at Millis, sent, received time.Time) {
	if !n.evidence.witness(at, sent, received) {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.heardSince != NoEvents {
		n.heardSince = min(n.heardSince, at)
	}
	for p, since := range n.since {
		if since != NoEvents {
			n.since[p] = min(since, at)
		}
	}
}

// partitionHeardSince returns the time since which every event of a partition was heard: the later of the server's
// subscription and the partition's arrival.
func (n *Node) partitionHeardSince(p keys.Partition) Millis {
	n.mu.Lock()
	defer n.mu.Unlock()
	if since, ok := n.since[p]; ok {
		return max(since, n.heardSince)
	}
	return NoEvents
}

// heardSinceOn is partitionHeardSince for a step on a server. The topology may know of a slot's move before the node
// does: the server then runs the step, though the node has heard another one. The result is NoEvents then.
func (n *Node) heardSinceOn(server *redis.Client, p keys.Partition) Millis {
	if server != n.server {
		return NoEvents
	}
	return n.partitionHeardSince(p)
}

const (
	// markTTL is the life of a mark after its last writing.
	markTTL = 30 * 24 * time.Hour
	// markTimeout bounds the look for a mark.
	markTimeout = time.Second
)

// mark is the message of a timerd to the next one that starts, in Redis under the run id of the server.
type mark struct {
	Losses string `json:"losses"`
	// Expired is the server's count of expired keys once the canary has expired, and no other key.
	Expired int64  `json:"expired"`
	Canary  string `json:"canary"`
	// Slots are the first and the last of each row of slots that were audited.
	Slots [][2]int `json:"slots"`
}

// Mark leaves a mark in Redis. A timerd that starts when none is running compares the server with it, to know whether
// keys ran out meanwhile. Call it after sending a canary, whose key runs out soon, with the sections server and stats
// of INFO from just before. It leaves no mark while an audit is outstanding. An older mark does no harm.
func (n *Node) Mark(ctx context.Context, info, canary string) error {
	losses, audited, _ := n.evidence.known()
	run := infoField(info, "run_id")
	if losses == "" || runOf(losses) != run {
		return nil
	}
	expired, err := strconv.ParseInt(infoField(info, "expired_keys"), 10, 64)
	if err != nil {
		return fmt.Errorf("schedule: read the number of keys that ran out: %w", err)
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

// recall finds out, once, whether only deletions went unnoticed since the last mark. Call it while events are heard and
// before canaries are sent: any later expiry is heard. Without a mark nothing is known; the next audit makes up for
// that.
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

// losses is the reply of read_losses.lua, and the overlong times without a reading of the clock so far.
type losses struct {
	text    string
	expired int64
	silent  int
}

func (n *Node) readLosses(ctx context.Context) (losses, error) {
	sent := time.Now()
	reply, err := ReadReply(n.schedule.step("read_losses").Run(ctx, n.server, nil), 3, 0)
	if err != nil {
		return losses{}, fmt.Errorf("schedule: read how keys may have vanished: %w", err)
	}
	n.witness(Millis(reply.Int(0)), sent, time.Now())
	_, _, silent := n.evidence.known()
	return losses{reply.Text(1), reply.Int(2), silent}, nil
}

// runOf returns the run id of the server that a text of losses is about.
func runOf(losses string) string {
	run, _, _ := strings.Cut(losses, " ")
	return run
}
