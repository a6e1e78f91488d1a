package testenv

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/ports"
)

// clusterNodeTimeout is after what silence the nodes of a cluster take one for failed.
const clusterNodeTimeout = 1000 * time.Millisecond

// clusterTimeout bounds how long a cluster may take to agree on something.
const clusterTimeout = 60 * time.Second

// clusterSlots is how many slots a cluster has.
const clusterSlots = 16384

// RedisCluster is a Redis Cluster of child processes. Its methods are for the test's goroutine.
type RedisCluster struct {
	Nodes []*RedisServer // the first ones began as masters, with the slots divided evenly between them

	t testing.TB
}

// Cluster starts a Redis Cluster with masters and, for each, a replica where replicas is set. It
// returns once the cluster works.
func Cluster(t testing.TB, masters int, replicas bool, opts ...RedisOption) *RedisCluster {
	t.Helper()
	c := &RedisCluster{t: t}
	n := masters
	if replicas {
		n = 2 * masters
	}
	opts = append([]RedisOption{
		RedisConfig("cluster-enabled", "yes"),
		RedisConfig("cluster-node-timeout", strconv.FormatInt(clusterNodeTimeout.Milliseconds(), 10)),
		RedisConfig("cluster-replica-validity-factor", "0"),
		RedisConfig("repl-diskless-sync-delay", "0"),
	}, opts...)
	for range n {
		c.Nodes = append(c.Nodes, clusterNode(t, opts))
	}
	for i, node := range c.Nodes {
		if i < masters {
			c.do(node, "CLUSTER", "ADDSLOTSRANGE", i*clusterSlots/masters, (i+1)*clusterSlots/masters-1)
			c.do(node, "CLUSTER", "SET-CONFIG-EPOCH", i+1)
		}
	}
	c.introduce()
	for i := masters; i < n; i++ {
		Eventually(t, clusterTimeout, func() error {
			return c.Nodes[i].admin().Do(t.Context(), "CLUSTER", "REPLICATE", c.ID(c.Nodes[i-masters])).Err()
		}, "a replica to know its master")
	}
	c.AwaitOK()
	return c
}

// introduce has the nodes meet until each knows all. On a busy machine a handshake may be too slow
// for the nodes, which then forget each other.
func (c *RedisCluster) introduce() {
	c.t.Helper()
	Eventually(c.t, clusterTimeout, func() error {
		var strangers error
		for _, node := range c.Nodes {
			if known := c.nodesKnownTo(node); known != len(c.Nodes) {
				strangers = fmt.Errorf("%s knows %d nodes of %d", node.Addr(), known, len(c.Nodes))
				for _, other := range c.Nodes {
					c.do(node, "CLUSTER", "MEET", "127.0.0.1", other.Port(), other.bus)
				}
			}
		}
		return strangers
	}, "the nodes to know each other")
}

// nodesKnownTo returns how many nodes have shaken hands with one.
func (c *RedisCluster) nodesKnownTo(node *RedisServer) int {
	c.t.Helper()
	nodes, err := node.admin().ClusterNodes(c.t.Context()).Result()
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.Count(nodes, "\n") - strings.Count(nodes, "handshake")
}

// clusterNode starts a node on ports of its own.
func clusterNode(t testing.TB, opts []RedisOption) *RedisServer {
	t.Helper()
	bus, err := ports.Free()
	if err != nil {
		t.Fatal(err)
	}
	server := Redis(t, append(opts, RedisConfig("cluster-port", strconv.Itoa(bus)))...)
	server.bus = bus
	return server
}

// AwaitOK waits until every running node finds that the cluster works, all agree on who has which
// slots, and every running replica follows its master.
func (c *RedisCluster) AwaitOK() {
	c.t.Helper()
	Eventually(c.t, clusterTimeout, func() error {
		agreed := ""
		for _, node := range c.Nodes {
			if node.Pid() == 0 {
				continue
			}
			owners, err := owners(c.t, node)
			if err != nil {
				return err
			}
			if agreed == "" {
				agreed = owners
			}
			if owners != agreed {
				return fmt.Errorf("%s finds that the slots are at %s, another node at %s", node.Addr(), owners, agreed)
			}
			info, err := node.admin().Info(c.t.Context(), "replication").Result()
			if err != nil {
				return err
			}
			state, err := node.admin().ClusterInfo(c.t.Context()).Result()
			if err != nil {
				return err
			}
			if !strings.Contains(state, "cluster_state:ok") || !strings.Contains(state, fmt.Sprintf("cluster_known_nodes:%d\r", len(c.Nodes))) {
				return fmt.Errorf("%s: %s", node.Addr(), state)
			}
			if strings.Contains(info, "master_link_status:down") {
				return fmt.Errorf("%s: %s", node.Addr(), info)
			}
		}
		return nil
	}, "the cluster to work")
}

// owners returns who has which slots, as one node sees it.
func owners(t testing.TB, node *RedisServer) (string, error) {
	nodes, err := node.admin().ClusterNodes(t.Context()).Result()
	var all []string
	for line := range strings.Lines(nodes) {
		if fields := strings.Fields(line); len(fields) > 8 {
			all = append(all, fields[0]+" has "+strings.Join(fields[8:], " "))
		}
	}
	slices.Sort(all)
	return strings.Join(all, "; "), err
}

// URL returns the cluster's go-redis URL.
func (c *RedisCluster) URL() string {
	var others []string
	for _, node := range c.Nodes[1:] {
		others = append(others, "addr="+node.Addr())
	}
	return "redis://" + c.Nodes[0].Addr() + "?" + strings.Join(others, "&")
}

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

// ID returns a node's id.
func (c *RedisCluster) ID(node *RedisServer) string {
	c.t.Helper()
	id, err := node.admin().Do(c.t.Context(), "CLUSTER", "MYID").Text()
	if err != nil {
		c.t.Fatal(err)
	}
	return id
}

// Master returns the running node that has a slot.
func (c *RedisCluster) Master(slot int) *RedisServer {
	c.t.Helper()
	for _, node := range c.Nodes {
		if node.Pid() == 0 {
			continue
		}
		nodes, err := node.admin().ClusterNodes(c.t.Context()).Result()
		if err != nil {
			c.t.Fatal(err)
		}
		for line := range strings.Lines(nodes) {
			fields := strings.Fields(line)
			if len(fields) > 8 && strings.Contains(fields[2], "myself,master") && holds(fields[8:], slot) {
				return node
			}
		}
	}
	c.t.Fatalf("testenv: no running node has slot %d", slot)
	return nil
}

// holds tells whether one of the ranges has a slot.
func holds(ranges []string, slot int) bool {
	for _, r := range ranges {
		first, last, ok := strings.Cut(r, "-")
		if !ok {
			last = first
		}
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err1 == nil && err2 == nil && from <= slot && slot <= to {
			return true
		}
	}
	return false
}

// Failover has a replica take over from its master in good order, and waits until it has.
func (c *RedisCluster) Failover(replica *RedisServer) {
	c.t.Helper()
	Eventually(c.t, clusterTimeout, func() error {
		if err := replica.admin().ClusterFailover(c.t.Context()).Err(); err != nil && !strings.Contains(err.Error(), "to a replica") {
			return err
		}
		role, err := replica.admin().Info(c.t.Context(), "replication").Result()
		if err == nil && !strings.Contains(role, "role:master") {
			err = errors.New("still a replica")
		}
		return err
	}, "the replica to take over")
	c.AwaitOK()
}

// OpenSlot begins to move a slot from one master to another.
func (c *RedisCluster) OpenSlot(slot int, from, to *RedisServer) {
	c.t.Helper()
	c.do(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", c.ID(from))
	c.do(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", c.ID(to))
}

// MoveKeys moves up to n keys of an open slot, and returns how many it moved.
func (c *RedisCluster) MoveKeys(slot, n int, from, to *RedisServer) int {
	c.t.Helper()
	names, err := from.admin().ClusterGetKeysInSlot(c.t.Context(), slot, n).Result()
	if err != nil {
		c.t.Fatal(err)
	}
	if len(names) == 0 {
		return 0
	}
	args := []any{"MIGRATE", "127.0.0.1", to.Port(), "", 0, 10000, "KEYS"}
	for _, name := range names {
		args = append(args, name)
	}
	c.do(from, args...)
	return len(names)
}

// CloseSlot moves the rest of an open slot and ends the move.
func (c *RedisCluster) CloseSlot(slot int, from, to *RedisServer) {
	c.t.Helper()
	for c.MoveKeys(slot, 100, from, to) > 0 {
	}
	for _, node := range []*RedisServer{to, from} {
		c.do(node, "CLUSTER", "SETSLOT", slot, "NODE", c.ID(to))
	}
}

func (c *RedisCluster) do(node *RedisServer, args ...any) {
	c.t.Helper()
	if err := node.admin().Do(c.t.Context(), args...).Err(); err != nil {
		c.t.Fatalf("testenv: %v on %s: %v", args, node.Addr(), err)
	}
}
