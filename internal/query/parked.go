package query

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// ParkedReason is the reason why a due timer is set aside: it waits without stopping others.
type ParkedReason string

// The reasons.
const (
	ParkedRights  ParkedReason = "rights"  // timerd may not read the key
	ParkedRefused ParkedReason = "refused" // NATS refuses the subject
	ParkedGuard   ParkedReason = "guard"   // timerd may not read the guard
)

// Parked counts the timers set aside for one reason.
type Parked struct {
	Reason ParkedReason
	Count  int64
	Key    keys.Key // of one partition's timer with the earliest due time
	Guard  string   // of that timer, if timerd may not read it
}

// ParkedOn returns the timers set aside on the node, by reason. It costs a scan for due timers, and a call for an
// example if there are any.
func ParkedOn(ctx context.Context, n *schedule.Node) ([]Parked, error) {
	found, err := n.ScanDue(ctx, schedule.Forever, schedule.Forever)
	if err != nil {
		return nil, err
	}
	var all []Parked
	for _, c := range []struct {
		reason ParkedReason
		count  int64
		index  func(keys.Partition) string
		first  redis.ZRangeArgs // the first one within the index
	}{
		{ParkedRights, found.Parked.Rights, keys.Partition.Aside, redis.ZRangeArgs{Start: "-inf", Stop: "+inf"}},
		{ParkedRefused, found.Parked.Refused, keys.Partition.Refused, redis.ZRangeArgs{Start: "0", Stop: "+inf"}},
		{ParkedGuard, found.Parked.Guard, keys.Partition.Refused,
			redis.ZRangeArgs{Start: "(0", Stop: "-inf", Rev: true}}, // their scores are negative
	} {
		if c.count == 0 {
			continue
		}
		a := Parked{Reason: c.reason, Count: c.count}
		if a.Key, a.Guard, err = firstParked(ctx, n, found.Heads, c.index, c.first); err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

// firstParked returns a key from the partitions' indexes of timers set aside, with the guard that timerd may not read;
// the zero Key if there is none any more.
func firstParked(ctx context.Context, n *schedule.Node, heads []schedule.Head,
	index func(keys.Partition) string, first redis.ZRangeArgs) (key keys.Key, guard string, err error) {
	first.ByScore, first.Count = true, 1
	replies := make([]*redis.StringSliceCmd, len(heads))
	_, err = n.Server().Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, h := range heads {
			first.Key = index(h.Partition)
			replies[i] = pipe.ZRangeArgs(ctx, first)
		}
		return nil
	})
	for i, reply := range replies {
		for _, member := range reply.Val() {
			if key, err := keys.Parse(parkedKey(member)); err == nil {
				text, err := n.Server().HGet(ctx, heads[i].Partition.FiringData(), member).Result()
				if r, ok := schedule.ParseRecord(text); err == nil && ok && r.Refusal().Unread {
					guard = r.Refusal().Guard
				}
				return key, guard, nil
			}
		}
	}
	if err != nil && !schedule.IsMoving(err) {
		return keys.Key{}, "", fmt.Errorf("schedule: read the timers set aside: %w", err)
	}
	return keys.Key{}, "", nil
}

// parkedKey returns the timer's key of an entry set aside: a member of due, :sdue.attempt:key, or a ref,
// due:attempt:key.
func parkedKey(member string) string {
	_, rest, _ := strings.Cut(member, ":")
	_, key, _ := strings.Cut(rest, ":")
	return key
}
