package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// Master is a server that takes writes, and the partitions that it has.
type Master struct {
	Addr       string // host:port
	Server     redis.UniversalClient
	Partitions []keys.Partition
}

// chunk is how many partitions one call looks at, so that none holds Redis for
// much longer than a millisecond: at 1 µs for one that is empty, 4 for another.
const chunk = 256

// chunks calls f with the tags of the partitions, some at a time.
func (m Master) chunks(f func(tags []any) error) error {
	for part := range slices.Chunk(m.Partitions, chunk) {
		tags := make([]any, len(part))
		for i, p := range part {
			tags[i] = string(p)
		}
		if err := f(tags); err != nil {
			return err
		}
	}
	return nil
}

// Masters asks the cluster for its masters that have slots. What one node says may
// be out of date for some seconds after a failover.
func (s *Schedule) Masters(ctx context.Context) ([]Master, error) {
	if s.cluster == nil {
		return nil, errors.New("schedule: the masters of a Redis that is no cluster")
	}
	var mu sync.Mutex
	at := map[redis.UniversalClient]int{}
	var masters []Master
	err := s.cluster.ForEachMaster(ctx, func(_ context.Context, server *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		masters = append(masters, Master{Addr: server.Options().Addr, Server: server})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("schedule: ask for the masters: %w", err)
	}
	slices.SortFunc(masters, func(a, b Master) int { return cmp.Compare(a.Addr, b.Addr) })
	for i, m := range masters {
		at[m.Server] = i
	}
	for slot := range keys.Slots {
		p := keys.SlotPartition(slot)
		server, err := s.cluster.MasterForKey(ctx, p.Due())
		if err != nil {
			return nil, fmt.Errorf("schedule: ask for the master of slot %d: %w", slot, err)
		}
		if n, ok := at[server]; ok {
			masters[n].Partitions = append(masters[n].Partitions, p)
		}
	}
	return masters, nil
}

// Shard is the part of a cluster's schedule that is on one master. Its methods may
// be called concurrently.
type Shard struct {
	*Schedule
	server *redis.Client

	mu     sync.Mutex
	parts  []keys.Partition
	floors map[keys.Partition]int64 // for each of parts, since when the master has it, in unix ms
}

// Shard returns the part of the schedule that is on one master of the cluster. It is
// empty until SetPartitions is called.
func (s *Schedule) Shard(server *redis.Client) *Shard {
	return &Shard{Schedule: s.On(server), server: server}
}

// SetPartitions says what is on the master by now, and returns how many partitions
// came. What was heard before from another server does not count for them: their
// since is the present. After an error nothing has changed.
func (h *Shard) SetPartitions(ctx context.Context, parts []keys.Partition) (came int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	floors := make(map[keys.Partition]int64, len(parts))
	var fresh []keys.Partition
	for _, p := range parts {
		if at, ok := h.floors[p]; ok {
			floors[p] = at
		} else {
			fresh = append(fresh, p)
		}
	}
	if len(fresh) > 0 {
		now, err := h.server.Time(ctx).Result()
		if err != nil {
			return 0, fmt.Errorf("schedule: read the clock of %s: %w", h.server.Options().Addr, err)
		}
		for _, p := range fresh {
			floors[p] = now.UnixMilli()
		}
	}
	h.parts, h.floors = slices.Clone(parts), floors
	return len(fresh), nil
}

// master returns what is on the master.
func (h *Shard) master() Master {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Master{Server: h.server, Partitions: h.parts}
}

// Serves tells whether the partition is on the master.
func (h *Shard) Serves(p keys.Partition) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.floors[p]
	return ok
}

// Home returns a partition on the master, another one each time as a rule: one whose
// slot is moving takes no keys. While there is none, it is not on the master.
func (h *Shard) Home() keys.Partition {
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := range h.floors {
		return p
	}
	return keys.Single
}

// heardSince returns from when on a partition's events are all heard by who hears
// those of the master from since on.
func (h *Shard) heardSince(p keys.Partition, since int64) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if at, ok := h.floors[p]; ok {
		return max(at, since)
	}
	return NoEvents
}

// Observe is Schedule.Observe by a listener to the master.
func (h *Shard) Observe(ctx context.Context, hints []Hint, since, heard int64) (Observed, error) {
	return h.observe(ctx, hints, func(p keys.Partition) int64 { return h.heardSince(p, since) }, heard)
}

// ClaimEach is Schedule.ClaimEach with a Since that a listener to the master gave.
func (h *Shard) ClaimEach(ctx context.Context, wants []Want, lease time.Duration) []Claimed {
	own := slices.Clone(wants)
	for i, w := range own {
		own[i].Since = h.heardSince(w.Partition, w.Since)
	}
	return h.Schedule.ClaimEach(ctx, own, lease)
}

// Survey looks for partitions in which something is to be claimed within the time.
// Tombstones that are older than a minute and the lease count too: a claim removes
// them.
func (h *Shard) Survey(ctx context.Context, within, lease time.Duration) (Surveyed, error) {
	return h.survey(ctx, h.master(), within, lease)
}

// forever is longer than any timer waits.
const forever = 100 * 365 * 24 * time.Hour

func (s *Schedule) survey(ctx context.Context, m Master, within, lease time.Duration) (Surveyed, error) {
	var found Surveyed
	err := m.chunks(func(tags []any) error {
		args := append([]any{within.Milliseconds(), lease.Milliseconds()}, tags...)
		reply, err := s.scripts.survey.Run(ctx, m.Server, nil, args...).Slice()
		if err != nil {
			return err
		}
		if len(reply) < 2 || len(reply)%2 != 0 {
			return fmt.Errorf("unexpected reply of %d elements", len(reply))
		}
		pending, _ := reply[0].(int64)
		firing, _ := reply[1].(int64)
		found.Pending += pending
		found.Firing += firing
		for i := 2; i < len(reply); i += 2 {
			tag, _ := reply[i].(string)
			due, _ := reply[i+1].(int64)
			if due < 0 {
				found.Moving = append(found.Moving, keys.Partition(tag))
			} else {
				found.Heads = append(found.Heads, Head{keys.Partition(tag), due})
			}
		}
		return nil
	})
	if err != nil {
		return found, fmt.Errorf("schedule: survey: %w", err)
	}
	return found, nil
}

// Apps returns the apps that timer_set was called for with keys on the master.
func (h *Shard) Apps(ctx context.Context) ([]string, error) {
	var all []string
	err := h.master().chunks(func(tags []any) error {
		apps, err := h.scripts.apps.Run(ctx, h.server, nil, tags...).StringSlice()
		all = append(all, apps...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("schedule: read the apps: %w", err)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}
