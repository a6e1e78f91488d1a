package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// Master is a server that takes writes, and the partitions that it has.
type Master struct {
	Name       string // distinguishes it from other masters; "" if there is only one
	Server     *redis.Client
	Partitions []keys.Partition
}

func (m Master) client() *redis.Client { return m.Server }

// topology says which servers have which partitions.
type topology interface {
	// partition returns the partition that holds a timer.
	partition(key string) keys.Partition
	// server returns the server that has a partition, as far as is known.
	server(ctx context.Context, p keys.Partition) (*redis.Client, error)
	// masters returns all servers that have partitions. What one node of a cluster says may be out of date for some
	// seconds after a failover.
	masters(ctx context.Context) ([]Master, error)
	// reload has the places of the partitions read again: a server said that one is elsewhere.
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

// layout is which masters there are, and which slots each has. It does not change.
type layout struct {
	masters []Master
	owners  []*redis.Client // by slot
}

func newCluster(rdb *redis.ClusterClient) *cluster {
	c := &cluster{rdb: rdb, partitions: make([]keys.Partition, keys.Slots)}
	for slot := range c.partitions {
		c.partitions[slot] = keys.SlotPartition(slot)
	}
	c.last.Store(&layout{owners: make([]*redis.Client, keys.Slots)})
	return c
}

func (c *cluster) partition(key string) keys.Partition { return keys.PartitionOf(key) }

func (c *cluster) server(ctx context.Context, p keys.Partition) (*redis.Client, error) {
	return c.rdb.MasterForKey(ctx, string(p)) // which hashes to its slot
}

func (c *cluster) masters(ctx context.Context) ([]Master, error) {
	var mu sync.Mutex
	var masters []Master
	err := c.rdb.ForEachMaster(ctx, func(_ context.Context, server *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		masters = append(masters, Master{Name: server.Options().Addr, Server: server})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("ask for the masters: %w", err)
	}
	slices.SortFunc(masters, func(a, b Master) int { return cmp.Compare(a.Name, b.Name) })
	// It is asked every second, and nearly always nothing has changed: then nothing is made anew.
	last := c.last.Load()
	same := slices.EqualFunc(masters, last.masters, func(a, b Master) bool { return a.Server == b.Server })
	owners := last.owners
	for slot, p := range c.partitions {
		server, err := c.server(ctx, p)
		switch {
		case err != nil:
			return nil, fmt.Errorf("ask for the master of slot %d: %w", slot, err)
		case server == owners[slot]:
			continue
		case &owners[0] == &last.owners[0]:
			owners = slices.Clone(owners)
		}
		owners[slot], same = server, false
	}
	if !same {
		give(masters, owners, c.partitions)
		last = &layout{masters, owners}
		c.last.Store(last)
	}
	return slices.Clone(last.masters), nil
}

// give gives masters the partitions that they own.
func give(masters []Master, owners []*redis.Client, partitions []keys.Partition) {
	at := map[*redis.Client]int{}
	for i, m := range masters {
		at[m.Server] = i
	}
	for slot, p := range partitions {
		if n, ok := at[owners[slot]]; ok {
			masters[n].Partitions = append(masters[n].Partitions, p)
		}
	}
}

func (c *cluster) reload(ctx context.Context) { c.rdb.ReloadState(ctx) }

func (c *cluster) check(ctx context.Context, server *redis.Client) error {
	info, err := server.ClusterInfo(ctx).Result()
	if err == nil && !strings.Contains(info, "cluster_state:ok") {
		return ErrClusterDown
	}
	return err
}

// Chunk is how many partitions one call looks at, so that none blocks Redis for much longer than a millisecond: an
// empty one takes 1 µs, any other 4.
const Chunk = 256

// RunOver runs a script on all partitions of the master, size of them in one call, with args and then their hash tags.
// It calls read for each reply, and ends at the first error.
func (m Master) RunOver(ctx context.Context, script *redis.Script, size int, args []any, read func(*redis.Cmd) error) error {
	return m.eachChunk(size, func(hashTags []any) error {
		return read(script.Run(ctx, m.Server, nil, slices.Concat(args, hashTags)...))
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
