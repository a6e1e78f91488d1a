package servers

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv/lab"
)

// sentinelDownAfter is the silence after which the sentinel considers the master dead.
const sentinelDownAfter = 2 * time.Second

// SentinelRedis is a master and a replica, with a sentinel that watches them.
type SentinelRedis struct {
	group
	sentinel *lab.Sentinel
	master   atomic.Int32 // the number of the last known master
}

func newSentinel(ctx context.Context) (*SentinelRedis, error) {
	s := &SentinelRedis{}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *SentinelRedis) start(ctx context.Context) error {
	master, err := devserver.StartRedis(ctx, durable()...)
	if err != nil {
		return err
	}
	s.add(master)
	host, port, err := net.SplitHostPort(master.Addr())
	if err != nil {
		return err
	}
	replica, err := devserver.StartRedis(ctx, append(durable(), devserver.Directive("replicaof", host, port))...)
	if err != nil {
		return err
	}
	s.add(replica)
	if err := s.awaitMaster(ctx); err != nil {
		return err
	}
	s.sentinel, err = lab.StartSentinel(ctx, master.Addr(), sentinelDownAfter, durable()[:1]...)
	return err
}

// Mode implements Redis, like the following methods.
func (s *SentinelRedis) Mode() string { return "sentinel" }

// URL names the sentinel. It has no user, because that would be the sentinel's.
func (s *SentinelRedis) URL() string {
	return s.sentinel.URL() + "&username=" + timerdUser + "&password=" + timerdUser
}

// Addr is empty, because timerd asks the sentinel for the master's address.
func (s *SentinelRedis) Addr() string { return "" }

// Node returns the master.
func (s *SentinelRedis) Node(context.Context, string) (*redis.Client, error) {
	return s.clients[s.master.Load()], nil
}

// Masters returns the only master.
func (s *SentinelRedis) Masters(ctx context.Context) ([]*redis.Client, error) {
	c, err := s.Node(ctx, "")
	return []*redis.Client{c}, err
}

// Refresh asks the sentinel for the master.
func (s *SentinelRedis) Refresh(ctx context.Context) {
	if i, err := s.current(ctx); err == nil {
		s.master.Store(int32(i))
	}
}

// current returns the number of the server that the sentinel considers the master.
func (s *SentinelRedis) current(ctx context.Context) (int, error) {
	addr, err := s.sentinel.Master(ctx)
	if err != nil {
		return 0, err
	}
	return s.at(addr)
}

// Kill kills the master. The repair waits until the replica is promoted, starts the old master again, and waits until
// that is the replica.
func (s *SentinelRedis) Kill(ctx context.Context, _ int) (mend func() error, err error) {
	i, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	return func() error {
		return errors.Join(s.awaitPromotion(ctx, i), s.servers[i].Start(ctx), s.awaitWhole(ctx))
	}, s.servers[i].Kill()
}

// Failover makes the sentinel promote the replica although the master works, and returns once the old master has become
// the replica.
func (s *SentinelRedis) Failover(ctx context.Context) error {
	i, err := s.current(ctx)
	if err != nil {
		return err
	}
	if err := s.sentinel.Failover(ctx); err != nil {
		return err
	}
	return errors.Join(s.awaitPromotion(ctx, i), s.awaitWhole(ctx))
}

// awaitPromotion waits until another server than the old master is the master.
func (s *SentinelRedis) awaitPromotion(ctx context.Context, old int) error {
	return devserver.Until(ctx, startTimeout, func() error {
		i, err := s.current(ctx)
		if err == nil && (i == old || !slices.Contains(s.masters(ctx), i)) {
			err = errors.New("servers: no server has been promoted")
		}
		if err == nil {
			s.master.Store(int32(i))
		}
		return err
	})
}

// awaitWhole waits until the master has its replica, and the sentinel knows both.
func (s *SentinelRedis) awaitWhole(ctx context.Context) error {
	return errors.Join(s.awaitMaster(ctx), s.sentinel.AwaitReplica(ctx))
}

// Close ends the sentinel and the servers.
func (s *SentinelRedis) Close() error {
	var err error
	if s.sentinel != nil {
		err = s.sentinel.Close()
	}
	return errors.Join(err, s.group.Close())
}
