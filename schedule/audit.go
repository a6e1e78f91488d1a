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

// Audit is one round through the index of a node. It is for one goroutine.
type Audit struct {
	node  *Node
	began losses
	slots slots
	tally *tally
}

// BeginAudit begins a round. What happens to keys from now on is left to the next one. It returns nil as long as nobody has
// said whether the node's events are heard: then it is too early to judge keys that are gone.
func (n *Node) BeginAudit(ctx context.Context) (*Audit, error) {
	if !n.evidence.wasAsked() {
		return nil, nil
	}
	began, err := n.readLosses(ctx)
	if err != nil {
		return nil, err
	}
	return &Audit{n, began, slotsOf(n.Master().Partitions), newTally(nil)}, nil
}

// Page compares about count pending timers of a partition with their keys, from cursor on; 0 begins, and a returned 0
// ends. A whole round looks at every timer that is pending throughout at least once. A timer whose key is gone is cancelled
// if that proves that the key was deleted, and is kept otherwise.
func (a *Audit) Page(ctx context.Context, p keys.Partition, cursor uint64, count int) (next uint64, seen Observed, err error) {
	n, after := a.node, ""
	for range count { // each call gets further, unless somebody goes on changing these keys
		args := []any{cursor, count, n.evidence.proof(p), int64(n.evidence.latest()), after}
		reply, err := n.schedule.Run(ctx, n.schedule.scripts.Load().audit, []Call{{p, args}})[0].Slice()
		if err == nil && len(reply) != 8 {
			err = fmt.Errorf("unexpected reply of %d elements", len(reply))
		}
		if err != nil {
			return 0, seen, fmt.Errorf("schedule: audit: %w", err)
		}
		text, _ := reply[0].(string)
		rescheduled, _ := reply[2].(int64)
		cancelled, _ := reply[3].(int64)
		kept, _ := reply[4].(int64)
		seen.Add(Observed{Rescheduled: int(rescheduled), Cancelled: int(cancelled), Kept: int(kept)})
		apps, _ := reply[6].([]any)
		for _, app := range apps {
			name, _ := app.(string)
			seen.Apps = append(seen.Apps, name)
		}
		a.tally.add(reply[7])
		if after, _ = reply[5].(string); after != "" {
			continue
		}
		if next, err = strconv.ParseUint(text, 10, 64); err != nil {
			return 0, seen, fmt.Errorf("schedule: audit: unexpected cursor: %w", err)
		}
		return next, seen, nil
	}
	return 0, seen, fmt.Errorf("schedule: audit: a page of %s changes faster than it can be read", p.Due())
}

// Complete ends a round that has looked at every partition: the absences up to its beginning are accounted for.
func (a *Audit) Complete() { a.node.evidence.know(a.began.text, a.slots, a.began.silent) }
