package schedule

import (
	"context"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// scanCount is how many keys one step of SCAN looks at, about: half a millisecond of Redis's time.
const scanCount = 1000

// countPage is how many firings one step of counting looks at, about: none holds Redis for longer than a page of an audit.
const countPage = 256

// ScanKeys calls yield with batches of the keys of the node's server that match a glob pattern, until yield returns an
// error. Keys that are set or deleted meanwhile may be missing or come twice.
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

// BeginAudit begins a round. Changes of keys from now on are left to the next one. It returns nil while it is not known
// yet whether the node's events are heard: then it is too early to judge keys that are gone.
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

// Page compares about count pending timers of a partition with their keys, from cursor on. 0 begins a round, and a
// returned 0 ends it. A complete round looks at least once at every timer that is pending all the time. A timer whose
// key is gone is cancelled if that proves that the key was deleted; otherwise it is kept.
func (a *Audit) Page(ctx context.Context, p keys.Partition, cursor uint64, count int) (next uint64, seen Observed, err error) {
	n, after := a.node, ""
	for range count { // each call gets further, unless somebody goes on changing these keys
		args := []any{cursor, count, n.evidence.proof(p), int64(n.evidence.latest()), after}
		reply, err := ReadReply(n.schedule.Run(ctx, n.schedule.step("audit"), []Call{{Partition: p, Args: args}})[0], 8, 0)
		if err != nil {
			return 0, seen, fmt.Errorf("schedule: audit: %w", err)
		}
		seen.Add(Observed{Rescheduled: int(reply.Int(2)), Cancelled: int(reply.Int(3)), Kept: int(reply.Int(4))})
		apps := reply.List(6)
		for i := range apps {
			seen.Apps = append(seen.Apps, apps.Text(i))
		}
		a.tally.add(reply.List(7))
		if after = reply.Text(5); after != "" {
			continue
		}
		if next, err = strconv.ParseUint(reply.Text(0), 10, 64); err != nil {
			return 0, seen, fmt.Errorf("schedule: audit: unexpected cursor: %w", err)
		}
		return next, seen, nil
	}
	return 0, seen, fmt.Errorf("schedule: audit: a page of %s changes faster than it can be read", p.Due())
}

// CountBy makes the round count the timers of each of some namespaces, and all others together. Call it before the
// first page.
func (a *Audit) CountBy(namespaces keys.Namespaces) { a.tally = newTally(namespaces) }

// CountFirings counts the firings of a partition.
func (a *Audit) CountFirings(ctx context.Context, p keys.Partition) error {
	s := a.node.schedule
	for cursor, more := "0", true; more; more = cursor != "0" && cursor != "" {
		reply, err := ReadReply(s.Run(ctx, s.step("count_firing"), []Call{{Partition: p, Args: []any{cursor, countPage}}})[0], 2, 0)
		if err != nil {
			return fmt.Errorf("schedule: count the firings: %w", err)
		}
		a.tally.add(reply.List(1))
		cursor = reply.Text(0)
	}
	return nil
}

// Counted returns what the round has counted: the namespaces in their order, and the rest at the end.
func (a *Audit) Counted() []NamespaceCount { return a.tally.counts }

// DoubtApps ends the round through a partition, which began at began or later and found timers of the apps in met. A
// known app without timers is marked as doubtful the first time, and forgotten the second time. An app is known again
// as soon as a timer of it is set.
func (a *Audit) DoubtApps(ctx context.Context, p keys.Partition, began Millis, met []string) error {
	args := []any{int64(began)}
	for _, app := range met {
		args = append(args, app)
	}
	if err := a.node.schedule.Run(ctx, a.node.schedule.step("doubt_apps"), []Call{{Partition: p, Args: args}})[0].Err(); err != nil {
		return fmt.Errorf("schedule: forget apps without timers: %w", err)
	}
	return nil
}

// ForgetApps forgets the apps of those partitions of the node that have no pending timers.
func (a *Audit) ForgetApps(ctx context.Context) error {
	err := a.node.Master().RunOver(ctx, a.node.schedule.step("forget_apps"), Chunk, nil, (*redis.Cmd).Err)
	if err != nil {
		return fmt.Errorf("schedule: forget apps without timers: %w", err)
	}
	return nil
}

// Complete ends a round that has looked at every partition. Keys that were gone when it began are then accounted for.
func (a *Audit) Complete() { a.node.evidence.know(a.began.text, a.slots, a.began.silent) }
