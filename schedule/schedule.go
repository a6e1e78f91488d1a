// Package schedule is timerd's durable index of timers in Redis and every
// atomic step on it. The steps themselves are in timerd.lua; this package
// loads and calls them.
//
// A timer is pending, then owed or claimed, then settled. Each step is one
// script or transaction, so a process that dies before, in or after one leaves
// the timer in a state that any other timerd goes on from. All times are those
// of the Redis server's clock.
package schedule

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// DefaultMaxPayload is the payload limit in bytes where none is configured.
const DefaultMaxPayload = 256 << 10

// Bounds of one script call, so that none holds Redis for much longer than a
// millisecond: at 5 to 8 µs a timer, and one copy of the payloads each way.
const (
	MaxHints      = 128     // hints that one observe call takes in
	MaxClaim      = 128     // firings that one claim call returns
	maxClaimBytes = 1 << 20 // payload bytes that one claim call returns, about
)

// ErrRedisTooOld says that the server lacks what the schedule stands on.
var ErrRedisTooOld = errors.New("timerd needs Redis 7.0 or later, or Valkey")

// Schedule calls the steps on the index. Its methods may be called
// concurrently.
type Schedule struct {
	rdb     redis.UniversalClient
	cluster *redis.ClusterClient // rdb, or nil where that is no cluster
	server  redis.UniversalClient
	scripts *scripts
}

// New returns the schedule in the Redis that rdb talks to. In a Redis Cluster,
// which takes a *redis.ClusterClient that does not retry by itself, each timer's
// part of it is in the timer's own slot. Payloads of more than maxPayload bytes are
// not kept: their timers fire without data.
func New(rdb redis.UniversalClient, maxPayload int) *Schedule {
	cluster, _ := rdb.(*redis.ClusterClient)
	return &Schedule{rdb: rdb, cluster: cluster, server: rdb, scripts: newScripts(maxPayload, cluster != nil)}
}

// On returns the same schedule with one server of the cluster as the one that Load,
// EnsureLibrary, Library and MayEvict are about.
func (s *Schedule) On(server redis.UniversalClient) *Schedule {
	on := *s
	on.server = server
	return &on
}

// Partition returns the partition that holds a timer.
func (s *Schedule) Partition(key string) keys.Partition {
	if s.cluster == nil {
		return keys.Single
	}
	return keys.PartitionOf(key)
}

// Home returns a partition on the server.
func (s *Schedule) Home() keys.Partition { return keys.Single }

// Serves tells whether the partition is on the server.
func (s *Schedule) Serves(p keys.Partition) bool { return p == keys.Single }

// HintKind says what a keyspace event hints at.
type HintKind byte

// The kinds of hint. Only Expired is evidence; the others have the key's state
// read again.
const (
	Touched HintKind = 't' // the key was set or changed
	Audited HintKind = 'a' // an audit came across the key; there was no event
	Gone    HintKind = 'g' // the key was deleted, renamed or moved away
	Evicted HintKind = 'v' // Redis evicted the key
	Expired HintKind = 'x' // the key's TTL ran out
)

// Hint is a keyspace event of a timer's key.
type Hint struct {
	Kind HintKind
	Key  string
	// Known restricts the hint to a timer that the schedule has already, because
	// the key is in none of the namespaces.
	Known bool
	// Held is for how long the hint had to wait because its slot was moving from
	// one server of a cluster to another, so that nothing could happen to its timer.
	Held time.Duration
}

// code returns the kind as the script reads it.
func (h Hint) code() string {
	if h.Known {
		return strings.ToUpper(string(h.Kind))
	}
	return string(h.Kind)
}

// Head says when there is something to do in a partition.
type Head struct {
	Partition keys.Partition
	Due       int64 // unix ms; 0 for at once, -1 for nothing
}

// Observed is what a step of taking in hints or auditing did.
type Observed struct {
	Heads       []Head // the first due time of each partition that the hints were about
	Owed        int    // timers that are to fire at once
	Adopted     int    // timers new to the schedule
	Rescheduled int    // timers whose due time changed
	Cancelled   int    // timers that were deleted or lost their TTL
}

// Add adds the counts of other to o.
func (o *Observed) Add(other Observed) {
	o.Owed += other.Owed
	o.Adopted += other.Adopted
	o.Rescheduled += other.Rescheduled
	o.Cancelled += other.Cancelled
}

// NoEvents is the since of a caller that hears no keyspace events.
const NoEvents = math.MaxInt64

// AuditPage compares about count pending timers with their keys, from cursor
// on; 0 begins, and a returned 0 ends. mayEvict says that keys may have been
// evicted, so that a key's absence does not mean that it was deleted. A whole
// round looks at every timer that is pending throughout at least once.
func (s *Schedule) AuditPage(ctx context.Context, p keys.Partition, cursor uint64, count int, mayEvict bool) (next uint64, seen Observed, err error) {
	evict := 0
	if mayEvict {
		evict = 1
	}
	reply, err := s.run(ctx, s.scripts.audit, []call{{p, []any{cursor, count, evict}}})[0].Slice()
	if err != nil {
		return 0, seen, fmt.Errorf("schedule: audit: %w", err)
	}
	if len(reply) != 4 {
		return 0, seen, fmt.Errorf("schedule: audit: unexpected reply of %d elements", len(reply))
	}
	text, _ := reply[0].(string)
	if next, err = strconv.ParseUint(text, 10, 64); err != nil {
		return 0, seen, fmt.Errorf("schedule: audit: unexpected cursor: %w", err)
	}
	rescheduled, _ := reply[2].(int64)
	cancelled, _ := reply[3].(int64)
	return next, Observed{Rescheduled: int(rescheduled), Cancelled: int(cancelled)}, nil
}

// Beat notes that the timerd of the given instance id is alive, and returns its
// rank among those that gave a sign of life within ttl, and how many they are.
// The order is by id, the same for all.
func (s *Schedule) Beat(ctx context.Context, instance string, ttl time.Duration) (rank, of int, err error) {
	alive, err := s.scripts.beat.Run(ctx, s.rdb, []string{keys.Single.Members()}, instance, ttl.Milliseconds()).StringSlice()
	if err != nil {
		return 0, 0, fmt.Errorf("schedule: beat: %w", err)
	}
	for i, id := range alive {
		if id == instance {
			rank = i
		}
	}
	return rank, len(alive), nil
}

// Retire withdraws a timerd that stops, so that the others close ranks at once.
func (s *Schedule) Retire(ctx context.Context, instance string) error {
	if err := s.rdb.ZRem(ctx, keys.Single.Members(), instance).Err(); err != nil {
		return fmt.Errorf("schedule: retire: %w", err)
	}
	return nil
}

// Surveyed is what a look over all partitions of a server found.
type Surveyed struct {
	Pending, Firing int64            // pending timers; firings that are owed or claimed
	Heads           []Head           // the partitions with something to claim, as far as is known
	Moving          []keys.Partition // those that are not there as a whole, and hold still
}

// Survey looks for partitions in which something is to be claimed now or within the
// time. The whole schedule of a Redis that is no cluster may always have something.
func (s *Schedule) Survey(ctx context.Context, _, _ time.Duration) (Surveyed, error) {
	pending, firing, err := s.Counts(ctx, keys.Single)
	return Surveyed{Pending: pending, Firing: firing, Heads: []Head{{Partition: keys.Single}}}, err
}

// Apps returns the apps that timer_set was called for.
func (s *Schedule) Apps(ctx context.Context) ([]string, error) {
	apps, err := s.rdb.SMembers(ctx, keys.Single.Apps()).Result()
	if err != nil {
		return nil, fmt.Errorf("schedule: read the apps: %w", err)
	}
	return apps, nil
}

// Counts returns how many timers are pending, and how many firings are owed or
// claimed.
func (s *Schedule) Counts(ctx context.Context, p keys.Partition) (pending, firing int64, err error) {
	var due, held *redis.IntCmd
	_, err = s.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		due, held = pipe.ZCard(ctx, p.Due()), pipe.ZCard(ctx, p.Firing())
		return nil
	})
	if err != nil {
		return 0, 0, fmt.Errorf("schedule: counts: %w", err)
	}
	return due.Val(), held.Val(), nil
}
