package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
)

const (
	// masterName is the sentinel's name of its master.
	masterName = "timers"
	// failoverTimeout is after how long a sentinel gives up a failover and tries again.
	failoverTimeout = 3 * time.Second
	// agreementTimeout bounds how long several servers may take to agree on something.
	agreementTimeout = 60 * time.Second
)

// Sentinel is a sentinel that watches one master and decides alone. Its methods may be called from any
// goroutine, Close last.
type Sentinel struct {
	server *devserver.Redis
	client *redis.SentinelClient
}

// StartSentinel starts a sentinel for the master at an address, a host:port, which has one replica. It
// returns once it knows that replica. The master is taken for dead after downAfter without an answer.
// The caller closes it; after an error nothing is left behind.
func StartSentinel(ctx context.Context, master string, downAfter time.Duration,
	opts ...devserver.RedisOption) (*Sentinel, error) {
	host, port, err := net.SplitHostPort(master)
	if err != nil {
		return nil, fmt.Errorf("lab: the master of a sentinel: %w", err)
	}
	milliseconds := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	opts = append([]devserver.RedisOption{
		devserver.AsSentinel(),
		devserver.Directive("sentinel", "monitor", masterName, host, port, "1"),
		devserver.Directive("sentinel", "down-after-milliseconds", masterName, milliseconds(downAfter)),
		devserver.Directive("sentinel", "failover-timeout", masterName, milliseconds(failoverTimeout)),
	}, opts...)
	server, err := devserver.StartRedis(ctx, opts...)
	if err != nil {
		return nil, err
	}
	s := &Sentinel{server: server, client: redis.NewSentinelClient(&redis.Options{Addr: server.Addr()})}
	if err := s.AwaitReplica(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// URL returns timerd's URL for the master that the sentinel knows.
func (s *Sentinel) URL() string { return s.server.URL(0) + "?master_name=" + masterName }

// Master returns the host:port of the server that the sentinel takes for the master.
func (s *Sentinel) Master(ctx context.Context) (string, error) {
	addr, err := s.client.GetMasterAddrByName(ctx, masterName).Result()
	if err != nil {
		return "", fmt.Errorf("lab: asking the sentinel for the master: %w", err)
	}
	return net.JoinHostPort(addr[0], addr[1]), nil
}

// AwaitReplica waits until the sentinel knows one replica and could promote it.
func (s *Sentinel) AwaitReplica(ctx context.Context) error {
	err := devserver.Until(ctx, agreementTimeout, func() error {
		replicas, err := s.client.Replicas(ctx, masterName).Result()
		if err == nil && (len(replicas) != 1 || replicas[0]["master-link-status"] != "ok" ||
			replicas[0]["flags"] != "slave") {
			err = fmt.Errorf("replicas: %v", replicas)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("lab: the sentinel does not know the replica: %w", err)
	}
	return nil
}

// Failover has the sentinel begin to promote the replica, with the master at work. Master and [devserver.Redis.Role]
// show when that is done.
func (s *Sentinel) Failover(ctx context.Context) error {
	if err := s.client.Failover(ctx, masterName).Err(); err != nil {
		return fmt.Errorf("lab: SENTINEL FAILOVER: %w", err)
	}
	return nil
}

// Close ends the sentinel.
func (s *Sentinel) Close() error { return errors.Join(s.client.Close(), s.server.Close()) }
