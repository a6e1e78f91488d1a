package schedule

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// Index is the Redis that a schedule is in: which server has which partition, and the scripts that run there. Code that
// only reads the schedule uses it. Its methods may be called concurrently.
type Index struct {
	rdb      redis.UniversalClient
	topology topology
	cluster  bool
	db       int  // the number of the database; 0 in a cluster
	virtual  bool // due times are by a virtual clock
	scripts  atomic.Pointer[scripts]
	loaded   stepServers
}

func newIndex(rdb redis.UniversalClient, maxPayload int) *Index {
	_, isCluster := rdb.(*redis.ClusterClient)
	ix := &Index{rdb: rdb, topology: newTopology(rdb), cluster: isCluster}
	if client, ok := rdb.(*redis.Client); ok {
		ix.db = client.Options().DB
	}
	ix.scripts.Store(newScripts(maxPayload, isCluster, ix.db))
	return ix
}

// MaxPayload returns the payload limit in bytes.
func (ix *Index) MaxPayload() int { return ix.scripts.Load().maxPayload }

// Partition returns the partition that holds a timer.
func (ix *Index) Partition(key string) keys.Partition { return ix.topology.partition(key) }

// Client returns the client of the whole Redis.
func (ix *Index) Client() redis.UniversalClient { return ix.rdb }

// IsCluster reports whether the Redis is a cluster.
func (ix *Index) IsCluster() bool { return ix.cluster }

// Masters asks Redis for the servers that have partitions, and returns each with its partitions. The first one also
// gets the partitions without a master: it refuses them, so they count as moving and are reported.
func (ix *Index) Masters(ctx context.Context) ([]Master, error) {
	masters, err := ix.topology.masters(ctx)
	for i, m := range masters {
		if len(m.nobodys) > 0 {
			masters[i].Partitions = slices.Concat(m.Partitions, m.nobodys)
		}
	}
	return masters, err
}

// Reload rereads the places of the partitions, as a server said that one is elsewhere.
func (ix *Index) Reload(ctx context.Context) { ix.topology.reload(ctx) }

// Pipelined runs commands on the server that has a partition, as far as is known. It does not follow a redirection, but
// remembers it for the next call.
func (ix *Index) Pipelined(ctx context.Context, p keys.Partition, fill func(redis.Pipeliner) error) error {
	server, err := ix.topology.server(ctx, p)
	if err != nil {
		return err
	}
	if _, err = server.Pipelined(ctx, fill); err != nil {
		if _, moved := redis.IsMovedError(err); moved {
			ix.topology.reload(ctx)
		}
	}
	return err
}

// ServerOf returns the Name of the node that has a partition, as far as is known. It is empty for a single Redis, and
// if nothing is known about the partition. It answers from memory once a cluster has answered.
func (ix *Index) ServerOf(p keys.Partition) string {
	if !ix.cluster {
		return ""
	}
	server, err := ix.topology.server(context.Background(), p)
	if err != nil {
		return ""
	}
	return server.Options().Addr
}

// ErrClusterNode says that a client for a single Redis talks to a node of a Redis Cluster, so that most of the schedule
// is out of reach.
var ErrClusterNode = errors.New("this Redis is part of a Redis Cluster")

// CheckMode returns an error that wraps ErrClusterNode if a client for a single Redis talks to a node of a cluster. A
// cluster client itself reports that there is no cluster.
func (ix *Index) CheckMode(ctx context.Context) error {
	if ix.cluster {
		return nil
	}
	info, err := ix.rdb.Info(ctx, "cluster").Result()
	if err != nil {
		return fmt.Errorf("schedule: ask Redis whether it is a cluster: %w", err)
	}
	if strings.Contains(info, "cluster_enabled:1") {
		return ErrClusterNode
	}
	return nil
}

// Clock returns the time, by the clock of due times, of the first master that answers.
func (ix *Index) Clock(ctx context.Context) (time.Time, error) {
	masters, err := ix.topology.masters(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("schedule: read the clock of Redis: %w", err)
	}
	type reading struct {
		at  time.Time
		err error
	}
	said := make(chan reading, len(masters)) // so that nobody waits for a silent one
	for _, m := range masters {
		go func() {
			at, err := ix.readDueClock(ctx, m.Server)
			said <- reading{at, err}
		}()
	}
	var last reading
	for range masters {
		if last = <-said; last.err == nil {
			return last.at, nil
		}
	}
	return time.Time{}, fmt.Errorf("schedule: read the clock of Redis: %w", last.err)
}

// blame adds to an error the name of the cluster's silent server that has the partition.
func (ix *Index) blame(p keys.Partition, err error) error {
	if _, is := errors.AsType[net.Error](err); is && ix.ServerOf(p) != "" {
		return Away{ix.ServerOf(p), err}
	}
	return err
}

// Script returns a script of a package that only reads, by the name of its file in the folder lua. The script may
// use the rooms of this package. Names of scripts and steps are unique in the program.
func (ix *Index) Script(files fs.FS, name string) Script {
	s := ix.scripts.Load()
	return Script{script: s.read(files, name), scripts: s, loaded: &ix.loaded}
}

// step returns one of this package's steps.
func (ix *Index) step(name string) Script {
	s := ix.scripts.Load()
	return Script{name: name, script: s.step(name), scripts: s, loaded: &ix.loaded}
}

// Run runs a step on partitions and returns the replies, each with its own error, in the order of the calls. It asks
// each server once, all of them at the same time. It does not follow redirections, but remembers them for the next
// call.
func (ix *Index) Run(ctx context.Context, step Script, calls []Call) []*redis.Cmd {
	replies := make([]*redis.Cmd, len(calls))
	indices := map[*redis.Client][]int{}
	for i, c := range calls {
		server, err := ix.topology.server(ctx, c.Partition)
		if err != nil {
			replies[i] = redis.NewCmd(ctx)
			replies[i].SetErr(err)
			continue
		}
		indices[server] = append(indices[server], i)
	}
	if len(indices) == 1 { // as nearly always: not worth another goroutine
		for server, todo := range indices {
			runOn(ctx, server, step, calls, todo, replies)
		}
	} else {
		var wg sync.WaitGroup
		for server, todo := range indices {
			wg.Go(func() { runOn(ctx, server, step, calls, todo, replies) })
		}
		wg.Wait()
	}
	for _, reply := range replies {
		if _, moved := redis.IsMovedError(reply.Err()); moved {
			ix.topology.reload(ctx)
			break
		}
	}
	return replies
}

// infoField returns one field of an INFO reply.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
