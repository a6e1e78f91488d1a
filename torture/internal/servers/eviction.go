package servers

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
)

// The ballast are keys with a long TTL that leave something to evict after the timers, so that Redis refuses no write.
// In a cluster some are on each master.
const (
	ballastKeys  = 96
	ballastBytes = 128 << 10
	ballastTTL   = 3600
	// evicts is by how many bytes Redis has to make room: more than all keys of timers take.
	evicts = 1 << 20
)

// Evict has each master of Redis evict keys that have a TTL, those first that run out first: the timers'.
func (s *System) Evict(ctx context.Context) error {
	ballast := strings.Repeat("b", ballastBytes)
	for i := range ballastKeys {
		name := "ballast:" + strconv.Itoa(i)
		err := s.onNode(ctx, name, func(c *redis.Client) error { return c.Do(ctx, "SET", name, ballast, "EX", ballastTTL).Err() })
		if err != nil {
			return err
		}
	}
	masters, err := s.Redis.Masters(ctx)
	for _, c := range masters {
		err = errors.Join(err, evict(ctx, c))
	}
	return err
}

func evict(ctx context.Context, c *redis.Client) error {
	info, err := c.InfoMap(ctx, "memory").Result()
	if err != nil {
		return err
	}
	used, err := strconv.ParseInt(info["Memory"]["used_memory"], 10, 64)
	if err != nil {
		return fmt.Errorf("servers: INFO memory: %w", err)
	}
	return errors.Join(
		c.ConfigSet(ctx, "maxmemory-policy", "volatile-ttl").Err(),
		c.ConfigSet(ctx, "maxmemory", strconv.FormatInt(used-evicts, 10)).Err(),
	)
}

// EndEviction sets the policy right, as timerd doctor advises, and takes the limit away.
func (s *System) EndEviction(ctx context.Context) error {
	err := s.onServers(func(c *redis.Client) error {
		return errors.Join(c.ConfigSet(ctx, "maxmemory-policy", "noeviction").Err(), c.ConfigSet(ctx, "maxmemory", "0").Err())
	})
	for i := range ballastKeys {
		name := "ballast:" + strconv.Itoa(i)
		err = errors.Join(err, s.onNode(ctx, name, func(c *redis.Client) error { return c.Del(ctx, name).Err() }))
	}
	return err
}

// onNode does something to the master that has a key, whoever that becomes meanwhile.
func (s *System) onNode(ctx context.Context, key string, do func(*redis.Client) error) error {
	return devserver.Until(ctx, startTimeout, func() error {
		c, err := s.Redis.Node(ctx, key)
		if err == nil {
			err = do(c)
		}
		if err != nil {
			s.Redis.Refresh(ctx)
		}
		return err
	})
}
