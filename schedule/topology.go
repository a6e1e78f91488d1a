package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// Master is a server that takes writes, and the partitions that it has.
type Master struct {
	Name       string // distinguishes it from other masters; "" if there is only one
	Server     *redis.Client
	Partitions []keys.Partition

	nobodys []keys.Partition // without a master; of the first one alone
}

func (m Master) client() *redis.Client { return m.Server }

// topology says which servers have which partitions.
type topology interface {
	// partition returns the partition that holds a timer.
	partition(key string) keys.Partition
	// server returns the server that has a partition, as far as is known.
	server(ctx context.Context, p keys.Partition) (*redis.Client, error)
	// masters returns all servers with partitions. A node's view of a cluster may be out of date for some seconds
	// after a failover.
	masters(ctx context.Context) ([]Master, error)
	// reload rereads the places of the partitions, as a server said that one is elsewhere.
	reload(ctx context.Context)
	// check returns ErrClusterDown where a server answers and its cluster does not work.
	check(ctx context.Context, server *redis.Client) error
}

// newTopology returns the topology of the Redis that rdb talks to.
func newTopology(rdb redis.UniversalClient) topology {
	switch rdb := rdb.(type) {
	case *redis.Client:
		return single{rdb}
	case *redis.ClusterClient:
		return &passing{topology: newCluster(rdb)}
	}
	panic(fmt.Sprintf("schedule: a client of type %T; want *redis.Client or *redis.ClusterClient", rdb))
}

// ErrClusterDown says that a master answers, but the cluster takes no commands: some slots have no master.
var ErrClusterDown = errors.New("the cluster is down: there are slots without a master")

// errNoMasters says that a server has answered that no master has slots: it has left its cluster, or is in none yet.
var errNoMasters = errors.New("the cluster has no master that has slots")

// IsClusterDown reports whether an error, of [Node.Check] or of a command, says only that the cluster is down.
func IsClusterDown(err error) bool {
	return errors.Is(err, ErrClusterDown) || redis.IsClusterDownError(err)
}

// single is the topology of one Redis server, or of one at a time behind Sentinel: one partition.
type single struct{ rdb *redis.Client }

func (s single) partition(string) keys.Partition { return keys.Single }

func (s single) server(context.Context, keys.Partition) (*redis.Client, error) { return s.rdb, nil }

func (s single) masters(context.Context) ([]Master, error) {
	return []Master{{Server: s.rdb, Partitions: []keys.Partition{keys.Single}}}, nil
}

func (s single) reload(context.Context) {}

func (s single) check(context.Context, *redis.Client) error { return nil }

// cluster is the topology of a Redis Cluster: a partition for each slot.
type cluster struct {
	rdb        *redis.ClusterClient
	partitions []keys.Partition // by slot
	last       atomic.Pointer[layout]
}

// layout is the masters with their partitions, as they were found. It does not change.
type layout struct {
	masters []Master
	said    []redis.ClusterSlot // by the first of them; nil if it did not answer
	found   time.Time           // when all slots were asked for
	changed time.Time           // last change
}

const (
	// layoutFor is the time for which a layout counts as the present one while a master's answer about the slots stays
	// the same. It is also the time for which a layout must not have changed: two servers' answers about a change
	// differ for a while.
	layoutFor = 10 * time.Second
	// saidWithin bounds the wait for that master.
	saidWithin = 100 * time.Millisecond
)

func newCluster(rdb *redis.ClusterClient) *cluster {
	c := &cluster{rdb: rdb, partitions: make([]keys.Partition, keys.Slots)}
	for slot := range c.partitions {
		c.partitions[slot] = keys.SlotPartition(slot)
	}
	c.last.Store(&layout{})
	return c
}

func (c *cluster) partition(key string) keys.Partition { return keys.PartitionOf(key) }

func (c *cluster) server(ctx context.Context, p keys.Partition) (*redis.Client, error) {
	return c.rdb.MasterForKey(ctx, string(p)) // which hashes to its slot
}

// masters is asked every second, and nearly always nothing has changed. To ask for the server of each slot takes 2 ms,
// so the last answer is given again as long as nothing speaks against it.
func (c *cluster) masters(ctx context.Context) ([]Master, error) {
	var mu sync.Mutex
	found := layout{found: time.Now()}
	err := c.rdb.ForEachMaster(ctx, func(_ context.Context, server *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		found.masters = append(found.masters, Master{Name: server.Options().Addr, Server: server})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("ask for the masters: %w", err)
	}
	if len(found.masters) == 0 {
		return nil, errNoMasters
	}
	slices.SortFunc(found.masters, func(a, b Master) int { return cmp.Compare(a.Name, b.Name) })
	last := c.last.Load()
	asking, cancel := context.WithTimeout(ctx, saidWithin)
	said := redis.NewClusterSlotsCmd(asking, "cluster", "slots")
	if found.masters[0].Server.Process(asking, said) == nil {
		found.said = said.Val()
	}
	cancel()
	same := found.said != nil && reflect.DeepEqual(found.said, last.said) &&
		slices.EqualFunc(found.masters, last.masters, func(a, b Master) bool { return a.Server == b.Server })
	if same && found.found.Sub(last.changed) > layoutFor && found.found.Sub(last.found) < layoutFor {
		return slices.Clone(last.masters), nil
	}
	if err := c.give(ctx, found.masters); err != nil {
		return nil, err
	}
	found.changed = found.found
	if same && slices.EqualFunc(found.masters, last.masters,
		func(a, b Master) bool { return slices.Equal(a.Partitions, b.Partitions) }) {
		found.masters, found.changed = last.masters, last.changed
	}
	c.last.CompareAndSwap(last, &found) // unless a server has said meanwhile that a slot is elsewhere
	return slices.Clone(found.masters), nil
}

// give gives masters the partitions that they have.
func (c *cluster) give(ctx context.Context, masters []Master) error {
	at := map[*redis.Client]int{}
	for i, m := range masters {
		at[m.Server] = i
	}
	for slot, p := range c.partitions {
		server, err := c.server(ctx, p)
		if err != nil {
			return fmt.Errorf("ask for the master of slot %d: %w", slot, err)
		}
		if n, ok := at[server]; ok {
			masters[n].Partitions = append(masters[n].Partitions, p)
		} else {
			masters[0].nobodys = append(masters[0].nobodys, p)
		}
	}
	return nil
}

func (c *cluster) reload(ctx context.Context) {
	c.rdb.ReloadState(ctx)
	c.last.Store(&layout{})
}

func (c *cluster) check(ctx context.Context, server *redis.Client) error {
	info, err := server.ClusterInfo(ctx).Result()
	if err == nil && !strings.Contains(info, "cluster_state:ok") {
		return ErrClusterDown
	}
	return err
}

// Chunk bounds the partitions of one call, so that none blocks Redis for much longer than a millisecond: an empty one
// takes 1 µs, any other 4.
const Chunk = 256

// RunOver runs a step on all partitions of the master, size of them in one call, with args and then their hash tags.
// It calls read for each reply, and ends at the first error.
func (m Master) RunOver(ctx context.Context, step Script, size int, args []any, read func(*redis.Cmd) error) error {
	return m.eachChunk(size, func(hashTags []any) error {
		return read(step.Run(ctx, m.Server, nil, slices.Concat(args, hashTags)...))
	})
}

// eachChunk calls f with the hash tags of size of the partitions at a time, until it fails.
func (m Master) eachChunk(size int, f func(hashTags []any) error) error {
	for part := range slices.Chunk(m.Partitions, size) {
		hashTags := make([]any, len(part))
		for i, p := range part {
			hashTags[i] = string(p)
		}
		if err := f(hashTags); err != nil {
			return err
		}
	}
	return nil
}
