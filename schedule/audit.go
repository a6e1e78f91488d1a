package schedule

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// scanCount bounds the keys of one step of SCAN, about: half a millisecond of Redis's time.
const scanCount = 1000

// countPage bounds the firings of one step of counting, about: it holds Redis no longer than a page of an audit.
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

// auditPlace is the progress of a round in a partition.
type auditPlace struct {
	partition     keys.Partition
	cursor, after string          // of the page to be looked at, and the timer to go on after
	met           map[string]bool // the apps of its timers
	repeats       int             // looks at its page
}

// Partitions compares the pending timers of partitions with their keys, about count of them in each call, and calls
// between after each. It looks at least once at every timer that is pending all the time. A timer without its key is
// cancelled if the key was certainly deleted, and otherwise kept. Apps without timers are doubted, see DoubtApps; the
// round began at began or later. It goes on past partitions whose slots are moving, and returns an error for one of
// them at the end.
func (a *Audit) Partitions(
	ctx context.Context, partitions []keys.Partition, count int, began Millis, between func() error,
) (seen Observed, err error) {
	left := make([]*auditPlace, len(partitions))
	for i, p := range partitions {
		left[i] = &auditPlace{partition: p, cursor: "0", met: map[string]bool{}}
	}
	var moving error
	for len(left) > 0 {
		some := min(len(left), maxPartitions)
		if left[0].cursor != "0" || left[0].after != "" {
			some = 1 // it takes several calls by itself
		}
		rest, err := a.look(ctx, left[:some], count, began, &seen)
		left = append(rest, left[some:]...)
		if err == nil && between != nil {
			err = between()
		}
		if IsMoving(err) {
			moving = err
		} else if err != nil {
			return seen, err
		}
	}
	return seen, moving
}

// look makes one call for some partitions, and returns the unfinished ones.
func (a *Audit) look(ctx context.Context, some []*auditPlace, count int, began Millis,
	seen *Observed) (rest []*auditPlace, err error) {
	script := a.node.schedule.step("audit")
	reply, err := ReadReply(script.Run(ctx, a.node.server, nil, a.args(some, count, began)...), 2, 1)
	var refused []*auditPlace
	if _, answered := errors.AsType[redis.Error](err); answered {
		refused = some // one of them is broken, or moving
	} else if err != nil {
		return nil, fmt.Errorf("schedule: audit: %w", err)
	} else {
		a.tally.add(reply.List(0))
		for i, place := range some {
			part := Reply(nil)
			if i+1 < len(reply) {
				part = reply.List(i + 1)
			}
			switch {
			case i+1 >= len(reply): // no more was looked at
				rest = append(rest, place)
			case len(part) == 0:
				refused = append(refused, place)
			default:
				more, err := a.take(ctx, place, part, count, began, seen)
				if err != nil {
					return nil, err
				}
				rest = append(rest, more...)
			}
		}
	}
	more, err := a.lookAlone(ctx, refused, count, began, seen)
	return append(more, rest...), err
}

// lookAlone makes a call for each of some partitions. A server refuses the whole call while the slot is moving.
func (a *Audit) lookAlone(ctx context.Context, some []*auditPlace, count int, began Millis,
	seen *Observed) (rest []*auditPlace, err error) {
	var moving error
	for i, place := range some {
		call := Call{Partition: place.partition, Args: a.args(some[i:i+1], count, began)}
		reply, err := ReadReply(a.node.schedule.Run(ctx, a.node.schedule.step("audit"), []Call{call})[0], 2, 0)
		if IsMoving(err) {
			moving = fmt.Errorf("schedule: audit: %w", err)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("schedule: audit: %w", err)
		}
		a.tally.add(reply.List(0))
		more, err := a.take(ctx, place, reply.List(1), count, began, seen)
		if err != nil {
			return nil, err
		}
		rest = append(rest, more...)
	}
	return rest, moving
}

// args are the arguments of a call for some partitions.
func (a *Audit) args(some []*auditPlace, count int, began Millis) []any {
	evidence := &a.node.evidence
	losses, audited, _ := evidence.known()
	args := []any{count, int64(evidence.latest()), losses, int64(began)}
	for _, place := range some {
		args = append(args, place.partition.Prefix(), place.cursor, place.after, audited.has(place.partition.Slot()))
	}
	return args
}

// take takes in the reply of a partition. It returns the place if the partition goes on there.
func (a *Audit) take(ctx context.Context, place *auditPlace, part Reply, count int, began Millis,
	seen *Observed) ([]*auditPlace, error) {
	if len(part) != 8 {
		return nil, fmt.Errorf("schedule: audit: unexpected part of %d elements", len(part))
	}
	seen.Add(Observed{Rescheduled: int(part.Int(2)), Cancelled: int(part.Int(3)), Kept: int(part.Int(4))})
	apps := part.List(6).texts()
	seen.Apps = append(seen.Apps, apps...)
	for _, app := range apps {
		place.met[app] = true
	}
	if place.after = part.Text(5); place.after != "" {
		place.repeats++
		if place.repeats >= count { // each call gets further, unless somebody goes on changing these keys
			return nil, fmt.Errorf("schedule: audit: a page of %s changes faster than it can be read",
				place.partition.Due())
		}
		return []*auditPlace{place}, nil
	}
	place.cursor, place.repeats = part.Text(0), 0
	if place.cursor != "0" {
		return []*auditPlace{place}, nil
	}
	if part.Int(7) == 1 {
		return nil, nil
	}
	return nil, a.DoubtApps(ctx, place.partition, began, slices.Collect(maps.Keys(place.met)))
}

// CountBy makes the round count the timers of each of some namespaces, and all others together. Call it before the
// first page.
func (a *Audit) CountBy(namespaces keys.Namespaces) { a.tally = newTally(namespaces) }

// CountFirings counts the firings of a partition.
func (a *Audit) CountFirings(ctx context.Context, p keys.Partition) error {
	s := a.node.schedule
	for cursor, more := "0", true; more; more = cursor != "0" && cursor != "" {
		reply, err := ReadReply(s.Run(ctx, s.step("count_firing"),
			[]Call{{Partition: p, Args: []any{cursor, countPage}}})[0], 2, 0)
		if err != nil {
			return fmt.Errorf("schedule: count the firings: %w", err)
		}
		a.tally.add(reply.List(1))
		cursor = reply.Text(0)
	}
	return nil
}

// Counted returns the counts of the round: the namespaces in order, and the rest at the end.
func (a *Audit) Counted() []NamespaceCount { return a.tally.counts }

// DoubtApps ends the round through a partition, which began at began or later and found timers of the apps in met. A
// known app without timers is marked as doubtful the first time, and forgotten the second time. An app is known again
// as soon as a timer of it is set.
func (a *Audit) DoubtApps(ctx context.Context, p keys.Partition, began Millis, met []string) error {
	args := []any{int64(began)}
	for _, app := range met {
		args = append(args, app)
	}
	if err := a.node.schedule.Run(ctx, a.node.schedule.step("doubt_apps"),
		[]Call{{Partition: p, Args: args}})[0].Err(); err != nil {
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
