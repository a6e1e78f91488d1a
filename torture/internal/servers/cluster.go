package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/poll"
	"github.com/timerd-io/timerd/internal/ports"
	"github.com/timerd-io/timerd/internal/redisserver"
)

const (
	clusterMasters = 3
	slots          = 16384
)

// ClusterRedis is a cluster of three masters with a replica each.
type ClusterRedis struct {
	group
	ids    []string // node ids
	buses  []int    // ports of the cluster bus
	client *redis.ClusterClient
}

func newCluster(ctx context.Context) (*ClusterRedis, error) {
	c := &ClusterRedis{}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *ClusterRedis) start(ctx context.Context) error {
	var addrs []string
	for range 2 * clusterMasters {
		bus, err := ports.Free()
		if err != nil {
			return err
		}
		c.buses = append(c.buses, bus)
		server, err := c.add(
			redisserver.Config("cluster-port", strconv.Itoa(bus)),
			redisserver.Config("cluster-enabled", "yes"), redisserver.Config("cluster-node-timeout", "3000"),
			redisserver.Config("cluster-replica-validity-factor", "0"),
		)
		if err != nil {
			return err
		}
		addrs = append(addrs, server.Addr())
	}
	if err := c.join(ctx); err != nil {
		return fmt.Errorf("servers: making a cluster: %w", err)
	}
	c.client = redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: addrs, MaxRedirects: -1, MaxRetries: -1, ReadTimeout: operation, WriteTimeout: operation,
	})
	return c.whole(ctx)
}

// join makes a cluster of single servers: the first three are the masters.
func (c *ClusterRedis) join(ctx context.Context) error {
	for i, client := range c.clients {
		id, err := client.Do(ctx, "CLUSTER", "MYID").Text()
		if err != nil {
			return err
		}
		c.ids = append(c.ids, id)
		if i < clusterMasters {
			first, last := i*slots/clusterMasters, (i+1)*slots/clusterMasters-1
			if err := client.Do(ctx, "CLUSTER", "ADDSLOTSRANGE", first, last).Err(); err != nil {
				return err
			}
		}
		if err := client.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err(); err != nil {
			return err
		}
	}
	if err := poll.Until(startTimeout, func() error { return c.meet(ctx) }); err != nil {
		return err
	}
	for i, client := range c.clients[clusterMasters:] {
		// It has to have heard of its master.
		if err := poll.Until(startTimeout, func() error {
			return client.Do(ctx, "CLUSTER", "REPLICATE", c.ids[i]).Err()
		}); err != nil {
			return err
		}
	}
	return nil
}

// meet has all nodes meet, and fails until they all know each other: on a busy machine a
// handshake may be too slow for them.
func (c *ClusterRedis) meet(ctx context.Context) (strangers error) {
	for i, client := range c.clients {
		nodes, err := client.Do(ctx, "CLUSTER", "NODES").Text()
		if err != nil {
			return err
		}
		if known := strings.Count(nodes, "\n") - strings.Count(nodes, "handshake"); known == len(c.servers) {
			continue
		}
		strangers = fmt.Errorf("%s does not know all others:\n%s", c.servers[i].Addr(), nodes)
		for j, other := range c.servers {
			if err := client.Do(ctx, "CLUSTER", "MEET", "127.0.0.1", other.Port(), c.buses[j]).Err(); err != nil {
				return err
			}
		}
	}
	return strangers
}

// whole waits until each master has its replica and all agree that the cluster works.
func (c *ClusterRedis) whole(ctx context.Context) error {
	if err := c.settled(ctx, clusterMasters); err != nil {
		return err
	}
	return poll.Until(startTimeout, func() error {
		for i, client := range c.clients {
			info, err := client.Do(ctx, "CLUSTER", "INFO").Text()
			if err != nil {
				return err
			}
			nodes, err := client.Do(ctx, "CLUSTER", "NODES").Text()
			if err != nil {
				return err
			}
			if !strings.Contains(info, "cluster_state:ok") || strings.Contains(nodes, "fail") || strings.Contains(nodes, "handshake") ||
				strings.Count(nodes, "slave") != clusterMasters {
				return fmt.Errorf("servers: the cluster is not whole, says %s:\n%s", c.servers[i].Addr(), nodes)
			}
		}
		c.Refresh(ctx)
		return nil
	})
}

// Mode implements Redis, as the methods that follow do.
func (c *ClusterRedis) Mode() string { return "cluster" }

// URL names all nodes.
func (c *ClusterRedis) URL() string {
	var more []string
	for _, s := range c.servers[1:] {
		more = append(more, "addr="+s.Addr())
	}
	return "redis://" + c.servers[0].Addr() + "?" + strings.Join(more, "&")
}

// Addr is empty: the nodes tell where the slots are.
func (c *ClusterRedis) Addr() string { return "" }

// Node returns the master of a key's slot, as far as is known.
func (c *ClusterRedis) Node(ctx context.Context, key string) (*redis.Client, error) {
	return c.client.MasterForKey(ctx, key)
}

// Masters returns those that say that they are.
func (c *ClusterRedis) Masters(ctx context.Context) ([]*redis.Client, error) {
	var all []*redis.Client
	for _, i := range c.masters(ctx) {
		all = append(all, c.clients[i])
	}
	if len(all) != clusterMasters {
		return nil, fmt.Errorf("servers: the cluster has %d masters, want %d", len(all), clusterMasters)
	}
	return all, nil
}

// Refresh has the client look again at who has which slot.
func (c *ClusterRedis) Refresh(ctx context.Context) { c.client.ReloadState(ctx) }

// Kill kills one master. Mending waits until its replica is promoted, and starts it again.
func (c *ClusterRedis) Kill(ctx context.Context, n int) (mend func() error, err error) {
	masters := c.masters(ctx)
	if len(masters) != clusterMasters {
		return nil, fmt.Errorf("servers: the cluster has %d masters, want %d", len(masters), clusterMasters)
	}
	i := masters[n%clusterMasters]
	return func() error {
		promoted := poll.Until(startTimeout, func() error {
			if now := c.masters(ctx); len(now) != clusterMasters {
				return fmt.Errorf("servers: the cluster has %d masters, want %d", len(now), clusterMasters)
			}
			return nil
		})
		return errors.Join(promoted, c.servers[i].Start(), c.whole(ctx))
	}, c.servers[i].Kill()
}

// Failover has a replica take over from its master, which is at work, and returns once all
// agree.
func (c *ClusterRedis) Failover(ctx context.Context, n int) error {
	masters := c.masters(ctx)
	var replicas []int
	for i := range c.servers {
		if !slices.Contains(masters, i) {
			replicas = append(replicas, i)
		}
	}
	if len(replicas) != clusterMasters {
		return fmt.Errorf("servers: the cluster has %d replicas, want %d", len(replicas), clusterMasters)
	}
	i := replicas[n%clusterMasters]
	if err := c.clients[i].Do(ctx, "CLUSTER", "FAILOVER").Err(); err != nil {
		return fmt.Errorf("servers: CLUSTER FAILOVER: %w", err)
	}
	promoted := poll.Until(startTimeout, func() error {
		if role(ctx, c.clients[i]) != "master" {
			return fmt.Errorf("servers: %s is not promoted", c.servers[i].Addr())
		}
		return nil
	})
	return errors.Join(promoted, c.whole(ctx))
}

// MoveSlot moves a slot that has keys from one master to another, key by key, as redis-cli
// does, and returns which. A master without keys moves none.
func (c *ClusterRedis) MoveSlot(ctx context.Context, n int) (slot int64, err error) {
	masters := c.masters(ctx)
	if len(masters) != clusterMasters {
		return 0, fmt.Errorf("servers: the cluster has %d masters, want %d", len(masters), clusterMasters)
	}
	from, to := masters[n%clusterMasters], masters[(n+1)%clusterMasters]
	key, err := c.clients[from].RandomKey(ctx).Result()
	if errors.Is(err, redis.Nil) {
		return -1, nil
	}
	if err == nil {
		slot, err = c.clients[from].ClusterKeySlot(ctx, key).Result()
	}
	if err == nil {
		err = c.move(ctx, slot, from, to, masters)
	}
	if err != nil {
		return 0, fmt.Errorf("servers: moving slot %d: %w", slot, err)
	}
	return slot, nil
}

func (c *ClusterRedis) move(ctx context.Context, slot int64, from, to int, masters []int) error {
	if err := c.clients[to].Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", c.ids[from]).Err(); err != nil {
		return err
	}
	if err := c.clients[from].Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", c.ids[to]).Err(); err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(c.servers[to].Addr())
	if err != nil {
		return err
	}
	for {
		keys, err := c.clients[from].ClusterGetKeysInSlot(ctx, int(slot), 10).Result()
		if err != nil {
			return err
		}
		if len(keys) == 0 {
			break
		}
		args := []any{"MIGRATE", host, port, "", 0, operation.Milliseconds(), "KEYS"}
		for _, key := range keys {
			args = append(args, key)
		}
		if err := c.clients[from].Do(ctx, args...).Err(); err != nil {
			return err
		}
	}
	// The new owner first, so that the slot is never without one.
	slices.SortFunc(masters, func(a, b int) int {
		if a == to {
			return -1
		}
		if b == to {
			return 1
		}
		return 0
	})
	for _, i := range masters {
		if err := c.clients[i].Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", c.ids[to]).Err(); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the servers.
func (c *ClusterRedis) Close() error {
	var err error
	if c.client != nil {
		err = c.client.Close()
	}
	return errors.Join(err, c.group.Close())
}
