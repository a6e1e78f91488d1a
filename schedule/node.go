package schedule

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// clockTimeout bounds the question for a server's clock.
const clockTimeout = time.Second

// Nodes asks Redis for the servers of the schedule and returns the node of each, with its current partitions; a server
// always has the same node. An *AwayError together with nodes has the servers whose clocks could not be read: events of
// their new partitions do not count as heard until Nodes is called again. All servers are asked at once, with a time
// limit, so a silent one does not delay the others.
func (s *Schedule) Nodes(ctx context.Context) ([]*Node, error) { return s.findNodes(ctx, true) }

// UndatedNodes is Nodes for callers that hear no events. It reads no clocks, so a silent server causes no delay.
func (s *Schedule) UndatedNodes(ctx context.Context) ([]*Node, error) { return s.findNodes(ctx, false) }

func (s *Schedule) findNodes(ctx context.Context, dated bool) ([]*Node, error) {
	s.asking.Lock() // one call at a time; s.mu is never held while a server is asked
	defer s.asking.Unlock()
	masters, err := s.topology.masters(ctx)
	if err != nil {
		return nil, fmt.Errorf("schedule: %w", err)
	}
	s.mu.Lock()
	before := s.nodes
	s.mu.Unlock()
	known := make(map[*redis.Client]*Node, len(masters))
	nodes := make([]*Node, len(masters))
	for i, m := range masters {
		n, ok := before[m.Server]
		if !ok {
			n = &Node{schedule: s, server: m.Server, name: m.Name, heardSince: NoEvents,
				looked: map[keys.Partition]string{}}
		}
		nodes[i], known[m.Server] = n, n
	}
	err = askAll(ctx, masters, clockTimeout, func(ctx context.Context, m Master) error {
		return known[m.Server].setPartitions(ctx, m.Partitions, dated)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes = known
	return nodes, err
}

// AskNodes calls ask for all nodes at the same time, each call with its own time limit. It returns nil, or an
// *AwayError with the failing nodes, in order.
func AskNodes(ctx context.Context, nodes []*Node, within time.Duration, ask func(context.Context, *Node) error) error {
	return askAll(ctx, nodes, within, ask)
}

// setPartitions notes the partitions on the server. New ones are heard from now on: their earlier events came from
// another server; if not dated, they do not count as heard. It is for one goroutine at a time.
func (n *Node) setPartitions(ctx context.Context, partitions []keys.Partition, dated bool) error {
	n.mu.Lock()
	before := n.since
	same := !n.undated && slices.Equal(n.partitions, partitions)
	n.mu.Unlock()
	if same { // as nearly always
		return nil
	}
	since := make(map[keys.Partition]Millis, len(partitions))
	came, undated := 0, 0
	for _, p := range partitions {
		at, ok := before[p]
		if !ok {
			came++
			at = NoEvents
		}
		if at == NoEvents {
			undated++
		}
		since[p] = at
	}
	var err error
	if dated && undated > 0 {
		var now Millis
		if now, err = n.readClock(ctx); err == nil {
			for p, at := range since {
				since[p] = min(at, now)
			}
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.partitions, n.since = partitions, since
	n.undated = undated > 0 && (!dated || err != nil)
	n.evidence.keep(slotsOf(partitions))
	n.came += came
	return err
}

// TakeNew returns the number of partitions that have come to the node since the last call.
func (n *Node) TakeNew() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	came := n.came
	n.came = 0
	return came
}

// Name returns the node's name in a cluster, host:port. It is empty for a single Redis.
func (n *Node) Name() string { return n.name }

// Index returns the Redis that the node is part of.
func (n *Node) Index() *Index { return n.schedule.Index }

// Server returns the client of the node's server, for a subscription to it.
func (n *Node) Server() *redis.Client { return n.server }

func (n *Node) client() *redis.Client { return n.server }

// Check returns an error unless the server answers and takes writes and, in a cluster, the cluster works. It changes
// nothing.
func (n *Node) Check(ctx context.Context) error {
	if err := n.schedule.topology.check(ctx, n.server); err != nil {
		return err
	}
	nobody := n.AnyPartition().Prefix() + "probe" // no key has this name
	err := n.server.SetArgs(ctx, nobody, "", redis.SetArgs{Mode: "XX", TTL: time.Second}).Err()
	_, moved := redis.IsMovedError(err)
	if _, asks := redis.IsAskError(err); errors.Is(err, redis.Nil) || moved || asks || redis.IsTryAgainError(err) {
		return nil
	}
	return err
}

// Owns reports whether the partition is on the node.
func (n *Node) Owns(p keys.Partition) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, ok := n.since[p]
	return ok
}

// ClaimedChannel returns the channel of messages about claims from the node's partitions: the same for all timerds with
// the same view of the cluster.
func (n *Node) ClaimedChannel() string { return keys.ClaimedChannel(n.claimsPartition()) }

// claimsPartition returns the partition of that channel, which is one of the node's if it has any.
func (n *Node) claimsPartition() keys.Partition {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.partitions) == 0 {
		return keys.Single
	}
	return n.partitions[0]
}

// AnyPartition returns a partition on the node, usually a different one each time, because the server takes no keys of
// one whose slot is moving. If the node has none, it returns one that may be elsewhere.
func (n *Node) AnyPartition() keys.Partition {
	n.mu.Lock()
	defer n.mu.Unlock()
	for p := range n.since { // in random order
		return p
	}
	return keys.Single
}

// Master returns the node's server and the partitions that it has by now. These are not to be changed.
func (n *Node) Master() Master {
	n.mu.Lock()
	defer n.mu.Unlock()
	return Master{Name: n.name, Server: n.server, Partitions: n.partitions}
}

// readClock asks for the server's time.
func (n *Node) readClock(ctx context.Context) (Millis, error) {
	sent := time.Now()
	now, err := n.server.Time(ctx).Result()
	if err != nil {
		return 0, fmt.Errorf("schedule: read the clock of %s: %w", n.server.Options().Addr, err)
	}
	n.ReadClock(now, sent, time.Now())
	if n.schedule.virtual {
		due, err := n.schedule.readDueClock(ctx, n.server)
		if err != nil {
			return 0, fmt.Errorf("schedule: read the virtual clock of %s: %w", n.server.Options().Addr, err)
		}
		n.readDueClock(due, sent, time.Now())
	}
	return MillisOf(now), nil
}

// ReadClock takes a reading of the server's clock that was made between two local instants. It says nothing about a
// virtual clock.
func (n *Node) ReadClock(server, sent, received time.Time) {
	if !n.schedule.virtual {
		n.clock.read(server, sent, received)
	}
	n.witness(MillisOf(server), sent, received)
}

// readDueClock is ReadClock for the clock of due times, as steps return it. A virtual clock proves nothing about the
// server's.
func (n *Node) readDueClock(due, sent, received time.Time) {
	n.clock.read(due, sent, received)
	n.witnessDue(MillisOf(due), sent, received)
}

// witnessDue is witness for such a reading.
func (n *Node) witnessDue(at Millis, sent, received time.Time) {
	if !n.schedule.virtual {
		n.witness(at, sent, received)
	}
}

// TakeClockSteps returns the latest ten steps of the server's clock since the last call; none of a virtual clock.
func (n *Node) TakeClockSteps() []ClockStep {
	if n.schedule.virtual {
		return nil
	}
	return n.clock.takeSteps()
}

// Until returns the time until the server's clock shows at: negative if it has passed, 0 before any reading of the
// clock.
func (n *Node) Until(at Millis) time.Duration { return n.clock.until(at) }

// Now returns the time on the server's clock, estimated from its last reading, or AtOnce before the first one.
func (n *Node) Now() Millis { return n.clock.now() }
