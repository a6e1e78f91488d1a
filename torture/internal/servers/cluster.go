package servers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv/lab"
)

const clusterMasters = 3

// ClusterNodeTimeout is the silence after which the nodes of a cluster consider a node failed.
const ClusterNodeTimeout = 3 * time.Second

// ClusterRedis is a cluster of three masters with a replica each.
type ClusterRedis struct {
	group
	cluster *lab.Cluster
	client  *redis.ClusterClient
}

func newCluster(ctx context.Context) (*ClusterRedis, error) {
	cluster, err := lab.StartCluster(ctx, lab.ClusterConfig{
		Masters: clusterMasters, Replicas: true, NodeTimeout: ClusterNodeTimeout, Options: durable(),
	})
	if err != nil {
		return nil, err
	}
	c := &ClusterRedis{cluster: cluster}
	c.add(cluster.Nodes...)
	var addrs []string
	for _, s := range c.servers {
		addrs = append(addrs, s.Addr())
	}
	c.client = redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: addrs, MaxRedirects: -1, MaxRetries: -1, ReadTimeout: operationTimeout, WriteTimeout: operationTimeout,
	})
	c.Refresh(ctx)
	return c, nil
}

// Mode implements Redis, like the following methods.
func (c *ClusterRedis) Mode() string { return "cluster" }

// URL names all nodes.
func (c *ClusterRedis) URL() string { return asTimerd(c.cluster.URL()) }

// Addr is empty, because timerd learns the nodes' addresses from the cluster.
func (c *ClusterRedis) Addr() string { return "" }

// Node returns the master of a key's slot, as far as known.
func (c *ClusterRedis) Node(ctx context.Context, key string) (*redis.Client, error) {
	return c.client.MasterForKey(ctx, key)
}

// Masters returns the nodes that call themselves masters.
func (c *ClusterRedis) Masters(ctx context.Context) ([]*redis.Client, error) {
	masters, err := c.threeMasters(ctx)
	if err != nil {
		return nil, err
	}
	var all []*redis.Client
	for _, s := range masters {
		all = append(all, c.group.client(s))
	}
	return all, nil
}

// threeMasters returns the masters. It returns an error unless there are three.
func (c *ClusterRedis) threeMasters(ctx context.Context) ([]*devserver.Redis, error) {
	masters := c.cluster.Masters(ctx)
	if len(masters) != clusterMasters {
		return nil, fmt.Errorf("servers: the cluster has %d masters, want %d", len(masters), clusterMasters)
	}
	return masters, nil
}

// Refresh makes the client read the map of slots again.
func (c *ClusterRedis) Refresh(ctx context.Context) { c.client.ReloadState(ctx) }

// awaitWhole waits until each master has its replica and all nodes agree that the cluster works.
func (c *ClusterRedis) awaitWhole(ctx context.Context) error {
	err := c.cluster.AwaitOK(ctx)
	c.Refresh(ctx)
	return err
}

// Kill kills one master. The repair waits until its replica is promoted, and starts the node again.
func (c *ClusterRedis) Kill(ctx context.Context, n int) (mend func() error, err error) {
	masters, err := c.threeMasters(ctx)
	if err != nil {
		return nil, err
	}
	victim := masters[n%clusterMasters]
	return func() error {
		promoted := c.cluster.AwaitMasters(ctx, clusterMasters)
		return errors.Join(promoted, victim.Start(ctx), c.awaitWhole(ctx))
	}, victim.Kill()
}

// Failover makes a replica take over from its running master, and returns once all nodes agree.
func (c *ClusterRedis) Failover(ctx context.Context, n int) error {
	replicas := c.cluster.Replicas(ctx)
	if len(replicas) != clusterMasters {
		return fmt.Errorf("servers: the cluster has %d replicas, want %d", len(replicas), clusterMasters)
	}
	err := c.cluster.Failover(ctx, replicas[n%clusterMasters])
	c.Refresh(ctx)
	return err
}

// MoveSlot moves a slot with keys from one master to another, and returns its number, or -1 if the master has no keys.
// If inOneStep is set, the servers move the slot by themselves, in one step; otherwise the slot moves key by key.
func (c *ClusterRedis) MoveSlot(ctx context.Context, n int, inOneStep bool) (slot int64, err error) {
	masters, err := c.threeMasters(ctx)
	if err != nil {
		return 0, err
	}
	from, to := masters[n%clusterMasters], masters[(n+1)%clusterMasters]
	key, err := c.group.client(from).RandomKey(ctx).Result()
	if errors.Is(err, redis.Nil) {
		return -1, nil
	}
	if err == nil {
		slot, err = c.group.client(from).ClusterKeySlot(ctx, key).Result()
	}
	switch {
	case err != nil:
	case inOneStep:
		_, err = c.cluster.MoveSlots(ctx, int(slot), int(slot), from, to)
	default:
		if err = c.cluster.OpenSlot(ctx, int(slot), from, to); err == nil {
			err = c.cluster.CloseSlot(ctx, int(slot), from, to)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("servers: moving slot %d: %w", slot, err)
	}
	return slot, nil
}

// Close ends the servers.
func (c *ClusterRedis) Close() error { return errors.Join(c.client.Close(), c.group.Close()) }
