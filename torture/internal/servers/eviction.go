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

// ballast is keys with a long TTL. Redis can evict them after the timers, so it refuses no write. In a cluster each
// master has some.
const (
	ballastKeys  = 96
	ballastBytes = 128 << 10
	ballastTTL   = 3600
	// evictBytes is the number of bytes that Redis has to free: more than the keys of all timers take.
	evictBytes = 1 << 20
)

// Evict makes each master evict keys with a TTL. Redis evicts first the keys that run out first: the timers' keys.
func (s *System) Evict(ctx context.Context) error {
	ballast := strings.Repeat("b", ballastBytes)
	for i := range ballastKeys {
		name := "ballast:" + strconv.Itoa(i)
		err := s.onNode(ctx, name, func(c *redis.Client) error {
			return c.Do(ctx, "SET", name, ballast, "EX", ballastTTL).Err()
		})
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
		c.ConfigSet(ctx, "maxmemory", strconv.FormatInt(used-evictBytes, 10)).Err(),
	)
}

// EndEviction corrects the policy, as timerd doctor advises, and removes the limit.
func (s *System) EndEviction(ctx context.Context) error {
	err := s.onServers(func(c *redis.Client) error {
		return errors.Join(c.ConfigSet(ctx, "maxmemory-policy", "noeviction").Err(),
			c.ConfigSet(ctx, "maxmemory", "0").Err())
	})
	for i := range ballastKeys {
		name := "ballast:" + strconv.Itoa(i)
		err = errors.Join(err, s.onNode(ctx, name, func(c *redis.Client) error { return c.Del(ctx, name).Err() }))
	}
	return err
}

// onNode calls a function with the master that has a key. It tries again if the master changes meanwhile.
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
