package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/child"
	"github.com/timerd-io/timerd/internal/poll"
	"github.com/timerd-io/timerd/internal/ports"
	"github.com/timerd-io/timerd/internal/redisserver"
)

// masterName is what the sentinel calls the master.
const masterName = "timers"

// SentinelRedis is a master and a replica that a sentinel watches.
type SentinelRedis struct {
	group
	dir     string
	addr    string // of the sentinel
	process *child.Process
	client  *redis.SentinelClient
	master  atomic.Int32 // which server was last known to be the master
}

func newSentinel(ctx context.Context) (s *SentinelRedis, err error) {
	s = &SentinelRedis{}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *SentinelRedis) start(ctx context.Context) error {
	master, err := s.add()
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(master.Addr())
	if err != nil {
		return err
	}
	if _, err := s.add(redisserver.Config("replicaof", host, port)); err != nil {
		return err
	}
	if err := s.settled(ctx, 1); err != nil {
		return err
	}
	binary, err := redisserver.Binary()
	if err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp("", "timerd-sentinel-"); err != nil {
		return err
	}
	own, err := ports.Free()
	if err != nil {
		return err
	}
	s.addr = ports.Address(own)
	conf := filepath.Join(s.dir, "sentinel.conf")
	text := fmt.Sprintf("bind 127.0.0.1\nport %d\ndir %s\nlogfile %s\n", own, s.dir, filepath.Join(s.dir, "sentinel.log")) +
		fmt.Sprintf("sentinel monitor %s %s %s 1\nsentinel down-after-milliseconds %[1]s 2000\nsentinel failover-timeout %[1]s 3000\n", masterName, host, port)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return err
	}
	if s.process, err = child.Start(exec.CommandContext(context.WithoutCancel(ctx), binary, conf, "--sentinel")); err != nil {
		return fmt.Errorf("servers: sentinel: %w", err)
	}
	s.client = redis.NewSentinelClient(&redis.Options{Addr: s.addr})
	return s.awaitReplica(ctx)
}

// awaitReplica waits until the sentinel knows of a replica that it could promote.
func (s *SentinelRedis) awaitReplica(ctx context.Context) error {
	err := poll.Until(startTimeout, func() error {
		replicas, err := s.client.Replicas(ctx, masterName).Result()
		if err == nil && (len(replicas) != 1 || replicas[0]["master-link-status"] != "ok" || replicas[0]["flags"] != "slave") {
			err = fmt.Errorf("replicas: %v", replicas)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("servers: the sentinel does not know the replica: %w", err)
	}
	return nil
}

// Mode implements Redis, as the methods that follow do.
func (s *SentinelRedis) Mode() string { return "sentinel" }

// URL is that of the sentinel.
func (s *SentinelRedis) URL() string { return "redis://" + s.addr + "/0?master_name=" + masterName }

// Addr is empty: the sentinel tells where the master is.
func (s *SentinelRedis) Addr() string { return "" }

// Node returns the master.
func (s *SentinelRedis) Node(context.Context, string) (*redis.Client, error) {
	return s.clients[s.master.Load()], nil
}

// Masters returns the one.
func (s *SentinelRedis) Masters(ctx context.Context) ([]*redis.Client, error) {
	c, err := s.Node(ctx, "")
	return []*redis.Client{c}, err
}

// Refresh asks the sentinel.
func (s *SentinelRedis) Refresh(ctx context.Context) {
	if i, err := s.current(ctx); err == nil {
		s.master.Store(int32(i))
	}
}

func (s *SentinelRedis) current(ctx context.Context) (int, error) {
	addr, err := s.client.GetMasterAddrByName(ctx, masterName).Result()
	if err != nil {
		return 0, err
	}
	return s.index(net.JoinHostPort(addr[0], addr[1]))
}

// Kill kills the master. Mending waits until the replica is promoted, starts the old master
// again and waits until it is the replica.
func (s *SentinelRedis) Kill(ctx context.Context, _ int) (mend func() error, err error) {
	i, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	return func() error {
		return errors.Join(s.promoted(ctx, i), s.servers[i].Start(), s.whole(ctx))
	}, s.servers[i].Kill()
}

// Failover has the sentinel promote the replica, with the master at work, and returns once
// that has become the replica.
func (s *SentinelRedis) Failover(ctx context.Context) error {
	i, err := s.current(ctx)
	if err != nil {
		return err
	}
	if err := s.client.Failover(ctx, masterName).Err(); err != nil {
		return fmt.Errorf("servers: SENTINEL FAILOVER: %w", err)
	}
	return errors.Join(s.promoted(ctx, i), s.whole(ctx))
}

// promoted waits until another one than the old master is it.
func (s *SentinelRedis) promoted(ctx context.Context, old int) error {
	return poll.Until(startTimeout, func() error {
		i, err := s.current(ctx)
		if err == nil && (i == old || !slices.Contains(s.masters(ctx), i)) {
			err = errors.New("servers: nobody is promoted")
		}
		if err == nil {
			s.master.Store(int32(i))
		}
		return err
	})
}

func (s *SentinelRedis) whole(ctx context.Context) error {
	return errors.Join(s.settled(ctx, 1), s.awaitReplica(ctx))
}

// Close ends the sentinel and the servers.
func (s *SentinelRedis) Close() error {
	var errs []error
	if s.client != nil {
		errs = append(errs, s.client.Close())
	}
	if s.process != nil {
		errs = append(errs, s.process.Stop(5*time.Second))
	}
	if s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	return errors.Join(append(errs, s.group.Close())...)
}
