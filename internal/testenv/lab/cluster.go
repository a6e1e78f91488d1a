// Package lab has the servers of tests, torture and bench only: clusters and sentinels of Redis, a clock that is ahead,
// and a TCP proxy that breaks the network.
package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/timerd-io/timerd/internal/devserver"
)

const (
	// clusterSlots is the number of slots of a cluster.
	clusterSlots = 16384
	// manualFailoverTimeout is after how long Redis gives up a CLUSTER FAILOVER.
	manualFailoverTimeout = 5 * time.Second
)

// Cluster is a Redis Cluster. Its methods may be called from any goroutine, methods that change something only from one
// at a time.
type Cluster struct {
	Nodes []*devserver.Redis // the first ones began as masters, then come their replicas in the same order

	ids      map[*devserver.Redis]string
	buses    map[*devserver.Redis]int // their ports of the cluster bus
	replicas bool
}

// ClusterConfig describes a cluster to start.
type ClusterConfig struct {
	Masters  int
	Replicas bool // a replica for each master
	// NodeTimeout is the silence after which the nodes consider one failed.
	NodeTimeout time.Duration
	// Options are the options of each node.
	Options []devserver.RedisOption
}

// StartCluster starts a cluster, with the slots divided evenly between the masters, and returns once it works. Redis
// takes 2 s for that: a master accepts no command earlier after its start. The caller closes the cluster; after an
// error nothing is left behind.
func StartCluster(ctx context.Context, config ClusterConfig) (*Cluster, error) {
	c := &Cluster{ids: map[*devserver.Redis]string{}, buses: map[*devserver.Redis]int{}, replicas: config.Replicas}
	if err := c.start(ctx, config); err != nil {
		return nil, fmt.Errorf("lab: starting a cluster: %w", errors.Join(err, c.Close()))
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, config ClusterConfig) error {
	n := config.Masters
	if config.Replicas {
		n *= 2
	}
	opts := append([]devserver.RedisOption{
		devserver.Directive("cluster-enabled", "yes"),
		devserver.Directive("cluster-node-timeout", strconv.FormatInt(config.NodeTimeout.Milliseconds(), 10)),
		// A replica with data of any age is promoted: the tests stop masters for long.
		devserver.Directive("cluster-replica-validity-factor", "0"),
		devserver.Directive("repl-diskless-sync-delay", "0"),
	}, config.Options...)
	nodes, buses := make([]*devserver.Redis, n), make([]int, n)
	var group errgroup.Group
	for i := range nodes {
		group.Go(func() error {
			return devserver.OnFreePort(func(bus int) (err error) {
				own := slices.Concat(opts, []devserver.RedisOption{
					devserver.Directive("cluster-port", strconv.Itoa(bus))})
				nodes[i], err = devserver.StartRedis(ctx, own...)
				buses[i] = bus
				return err
			})
		})
	}
	err := group.Wait()
	c.Nodes = slices.DeleteFunc(nodes, func(s *devserver.Redis) bool { return s == nil })
	if err != nil {
		return err
	}
	for i, node := range c.Nodes {
		c.buses[node] = buses[i]
		if c.ids[node], err = node.Admin().Do(ctx, "CLUSTER", "MYID").Text(); err != nil {
			return err
		}
		if i < config.Masters {
			first, last := i*clusterSlots/config.Masters, (i+1)*clusterSlots/config.Masters-1
			if err := do(ctx, node, "CLUSTER", "ADDSLOTSRANGE", first, last); err != nil {
				return err
			}
		}
		if err := do(ctx, node, "CLUSTER", "SET-CONFIG-EPOCH", i+1); err != nil {
			return err
		}
	}
	if err := devserver.Until(ctx, agreementTimeout, func() error { return c.introduce(ctx) }); err != nil {
		return err
	}
	for i, replica := range c.Nodes[config.Masters:] {
		// The replica must know that its master is one.
		if err := devserver.Until(ctx, agreementTimeout, func() error {
			return do(ctx, replica, "CLUSTER", "REPLICATE", c.ids[c.Nodes[i]])
		}); err != nil {
			return err
		}
	}
	return c.AwaitOK(ctx)
}

// introduce has each node meet all others, and returns an error until each knows all. It is called again and again: on
// a busy machine a handshake may take so long that the nodes forget each other.
func (c *Cluster) introduce(ctx context.Context) (incomplete error) {
	for _, node := range c.Nodes {
		nodes, err := node.Admin().ClusterNodes(ctx).Result()
		if err != nil {
			return err
		}
		known := strings.Count(nodes, "\n") - strings.Count(nodes, "handshake")
		if known == len(c.Nodes) {
			continue
		}
		incomplete = fmt.Errorf("%s knows %d nodes of %d", node.Addr(), known, len(c.Nodes))
		for _, other := range c.Nodes {
			if err := do(ctx, node, "CLUSTER", "MEET", "127.0.0.1", other.Port(), c.buses[other]); err != nil {
				return err
			}
		}
	}
	return incomplete
}

// AwaitOK waits until every running node finds that the cluster works, all agree on the owners of the slots, and every
// running replica follows its master. If all nodes run, it also waits until each master has a replica, in a cluster
// with replicas, and no node takes another one for failed.
func (c *Cluster) AwaitOK(ctx context.Context) error {
	err := devserver.Until(ctx, agreementTimeout, func() error {
		running := c.running()
		agreed := ""
		for _, node := range running {
			nodes, err := node.Admin().ClusterNodes(ctx).Result()
			if err != nil {
				return err
			}
			owners := slotOwners(nodes)
			if agreed == "" {
				agreed = owners
			}
			if owners != agreed {
				return fmt.Errorf("%s finds that the slots are at %s, another node at %s", node.Addr(), owners, agreed)
			}
			if len(running) == len(c.Nodes) && (strings.Contains(nodes, "fail") ||
				strings.Contains(nodes, "handshake")) {
				return fmt.Errorf("%s: %s", node.Addr(), nodes)
			}
			if err := c.nodeOK(ctx, node, len(running) == len(c.Nodes)); err != nil {
				return fmt.Errorf("%s: %w", node.Addr(), err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("lab: the cluster does not work: %w", err)
	}
	return nil
}

// nodeOK returns an error unless a node finds that the cluster works, and the node's replication does.
func (c *Cluster) nodeOK(ctx context.Context, node *devserver.Redis, allRun bool) error {
	state, err := node.Admin().ClusterInfo(ctx).Result()
	if err != nil {
		return err
	}
	if !strings.Contains(state, "cluster_state:ok") || !strings.Contains(state,
		fmt.Sprintf("cluster_known_nodes:%d\r", len(c.Nodes))) {
		return errors.New(state)
	}
	replication, err := node.Admin().Info(ctx, "replication").Result()
	if err != nil {
		return err
	}
	if strings.Contains(replication, "master_link_status:down") ||
		allRun && c.replicas && strings.Contains(replication, "role:master") &&
			!strings.Contains(replication, "connected_slaves:1\r") {
		return errors.New(replication)
	}
	return nil
}

// slotOwners returns the owners of slots in a CLUSTER NODES.
func slotOwners(nodes string) string {
	var all []string
	for line := range strings.Lines(nodes) {
		if fields := strings.Fields(line); len(fields) > 8 {
			all = append(all, fields[0]+" has "+strings.Join(fields[8:], " "))
		}
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// URL returns the cluster's go-redis URL.
func (c *Cluster) URL() string {
	var others []string
	for _, node := range c.Nodes[1:] {
		others = append(others, "addr="+node.Addr())
	}
	return "redis://" + c.Nodes[0].Addr() + "?" + strings.Join(others, "&")
}

// Masters returns the running nodes that report to be masters, Replicas the ones that report to be replicas.
func (c *Cluster) Masters(ctx context.Context) []*devserver.Redis { return c.withRole(ctx, "master") }

// Replicas is explained with Masters.
func (c *Cluster) Replicas(ctx context.Context) []*devserver.Redis { return c.withRole(ctx, "slave") }

func (c *Cluster) withRole(ctx context.Context, role string) []*devserver.Redis {
	return slices.DeleteFunc(c.running(), func(s *devserver.Redis) bool { return s.Role(ctx) != role })
}

// running returns a new slice of the nodes that are not stopped.
func (c *Cluster) running() []*devserver.Redis {
	return slices.DeleteFunc(slices.Clone(c.Nodes), func(s *devserver.Redis) bool { return s.Pid() == 0 })
}

// Owner returns the running node that has a slot.
func (c *Cluster) Owner(ctx context.Context, slot int) (*devserver.Redis, error) {
	for _, node := range c.running() {
		shards, err := node.Admin().ClusterShards(ctx).Result()
		if err != nil {
			return nil, err
		}
		for _, shard := range shards {
			has := slices.ContainsFunc(shard.Slots, func(r redis.SlotRange) bool {
				return r.Start <= int64(slot) &&
					int64(slot) <= r.End
			})
			if has && slices.ContainsFunc(shard.Nodes, func(n redis.Node) bool {
				return n.ID == c.ids[node] &&
					n.Role == "master"
			}) {
				return node, nil
			}
		}
	}
	return nil, fmt.Errorf("lab: no running node has slot %d", slot)
}

// Slots returns the slots of a master, by its own report. No slots are an error.
func (c *Cluster) Slots(ctx context.Context, master *devserver.Redis) ([]redis.SlotRange, error) {
	shards, err := master.Admin().ClusterShards(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("lab: the slots of %s: %w", master.Addr(), err)
	}
	for _, shard := range shards {
		is := func(n redis.Node) bool { return n.ID == c.ids[master] && n.Role == "master" }
		if slices.ContainsFunc(shard.Nodes, is) && len(shard.Slots) > 0 {
			return shard.Slots, nil
		}
	}
	return nil, fmt.Errorf("lab: %s has no slots", master.Addr())
}

// Failover has a replica take over from its master, which is at work, and waits until it has and all nodes agree.
func (c *Cluster) Failover(ctx context.Context, replica *devserver.Redis) error {
	if err := c.awaitReplica(ctx, replica); err != nil {
		return err
	}
	err := devserver.Until(ctx, agreementTimeout, func() error {
		// A master refuses it: "You should send CLUSTER FAILOVER to a replica".
		if err := replica.Admin().ClusterFailover(ctx).Err(); err != nil &&
			!strings.Contains(err.Error(), "to a replica") {
			return err
		}
		return devserver.Until(ctx, manualFailoverTimeout, func() error {
			if role := replica.Role(ctx); role != "master" {
				return fmt.Errorf("its role is %q", role)
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("lab: the replica at %s has not taken over: %w", replica.Addr(), err)
	}
	return c.AwaitOK(ctx)
}

// awaitReplica waits until every running node knows that a node is a replica. Nodes tell each other of a new replica
// only with their next pings, up to half a cluster-node-timeout later. A master that does not know yet refuses its
// vote, and the replica asks for votes again only after four times the timeout. A node that has become a master in
// the meantime is waited for no longer.
func (c *Cluster) awaitReplica(ctx context.Context, replica *devserver.Redis) error {
	return devserver.Until(ctx, agreementTimeout, func() error {
		if replica.Role(ctx) == "master" {
			return nil
		}
		for _, node := range c.running() {
			nodes, err := node.Admin().ClusterNodes(ctx).Result()
			if err != nil {
				return err
			}
			for line := range strings.Lines(nodes) {
				fields := strings.Fields(line)
				if fields[0] == c.ids[replica] && !strings.Contains(fields[2], "slave") {
					return fmt.Errorf("lab: to %s, the node at %s is no replica: %s", node.Addr(), replica.Addr(), line)
				}
			}
		}
		return nil
	})
}

// AwaitMasters waits until n running nodes are masters.
func (c *Cluster) AwaitMasters(ctx context.Context, n int) error {
	return devserver.Until(ctx, agreementTimeout, func() error {
		if masters := c.Masters(ctx); len(masters) != n {
			return fmt.Errorf("lab: the cluster has %d masters, want %d", len(masters), n)
		}
		return nil
	})
}

// Close ends the nodes.
func (c *Cluster) Close() error {
	var errs []error
	for _, node := range c.Nodes {
		errs = append(errs, node.Close())
	}
	return errors.Join(errs...)
}

func do(ctx context.Context, node *devserver.Redis, args ...any) error {
	if err := node.Admin().Do(ctx, args...).Err(); err != nil {
		return fmt.Errorf("lab: %v on %s: %w", args, node.Addr(), err)
	}
	return nil
}
