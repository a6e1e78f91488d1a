package testenv

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv/lab"
)

// clusterNodeTimeout is the silence after which the nodes of a cluster consider one failed.
const clusterNodeTimeout = time.Second

// RedisCluster is a Redis Cluster of child processes. Its methods are for the test's goroutine.
type RedisCluster struct {
	Nodes []*RedisServer // the first ones began as masters, with the slots divided evenly between them

	t       testing.TB
	cluster *lab.Cluster
}

// Cluster starts a Redis Cluster with masters and, for each, a replica where replicas is set. It returns once the
// cluster works, which takes over 2 s, and stops it when t ends.
func Cluster(t testing.TB, masters int, replicas bool, opts ...devserver.RedisOption) *RedisCluster {
	t.Helper()
	cluster, err := lab.StartCluster(t.Context(), lab.ClusterConfig{
		Masters: masters, Replicas: replicas, NodeTimeout: clusterNodeTimeout,
		Options: append([]devserver.RedisOption{redisBinary()}, opts...),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeRedis(t, cluster.Nodes...) })
	c := &RedisCluster{t: t, cluster: cluster}
	for _, node := range cluster.Nodes {
		c.Nodes = append(c.Nodes, &RedisServer{Redis: node, t: t})
	}
	return c
}

// AwaitOK waits until every running node finds that the cluster works, all agree on the owners of the slots, and every
// running replica follows its master. While all nodes run, each master has its replica then.
func (c *RedisCluster) AwaitOK() {
	c.t.Helper()
	c.fatal(c.cluster.AwaitOK(c.t.Context()))
}

// URL returns the cluster's go-redis URL.
func (c *RedisCluster) URL() string { return c.cluster.URL() }

// Client returns a new client of the cluster that is closed when the test ends.
func (c *RedisCluster) Client() *redis.ClusterClient {
	c.t.Helper()
	// By itself it asks for the masters once a minute, and after a redirection.
	o := &redis.ClusterOptions{MaxRedirects: 8, ClusterStateReloadInterval: time.Second}
	for _, node := range c.Nodes {
		o.Addrs = append(o.Addrs, node.Addr())
	}
	client := redis.NewClusterClient(o)
	c.t.Cleanup(func() {
		if err := client.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
			c.t.Errorf("testenv: closing a Redis client: %v", err)
		}
	})
	return client
}

// Master returns the running node that has a slot.
func (c *RedisCluster) Master(slot int) *RedisServer {
	c.t.Helper()
	owner, err := c.cluster.Owner(c.t.Context(), slot)
	c.fatal(err)
	for _, node := range c.Nodes {
		if node.Redis == owner {
			return node
		}
	}
	return nil // Owner returns one of the nodes
}

// Failover has a replica take over from its master in good order, and waits until it has.
func (c *RedisCluster) Failover(replica *RedisServer) {
	c.t.Helper()
	c.fatal(c.cluster.Failover(c.t.Context(), replica.Redis))
}

// OpenSlot begins to move a slot from one master to another.
func (c *RedisCluster) OpenSlot(slot int, from, to *RedisServer) {
	c.t.Helper()
	c.fatal(c.cluster.OpenSlot(c.t.Context(), slot, from.Redis, to.Redis))
}

// MoveKeys moves up to n keys of an open slot, and returns how many it moved.
func (c *RedisCluster) MoveKeys(slot, n int, from, to *RedisServer) int {
	c.t.Helper()
	moved, err := c.cluster.MoveKeys(c.t.Context(), slot, n, from.Redis, to.Redis)
	c.fatal(err)
	return moved
}

// CloseSlot moves the rest of an open slot and ends the move.
func (c *RedisCluster) CloseSlot(slot int, from, to *RedisServer) {
	c.t.Helper()
	c.fatal(c.cluster.CloseSlot(c.t.Context(), slot, from.Redis, to.Redis))
}

// MoveSlots moves the slots from first to last, and returns once all nodes agree. It reports whether the servers moved
// them by themselves, in one step; elsewhere each was moved key by key.
func (c *RedisCluster) MoveSlots(first, last int, from, to *RedisServer) (atomic bool) {
	c.t.Helper()
	atomic, err := c.cluster.MoveSlots(c.t.Context(), first, last, from.Redis, to.Redis)
	c.fatal(err)
	return atomic
}

func (c *RedisCluster) fatal(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}
