package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/moment"
)

// instantOf returns the instant of a moment, by the clock of Redis.
func instantOf(ctx context.Context, m moment.Moment, rdb redis.UniversalClient) (time.Time, error) {
	if at, ok := m.Instant(); ok {
		return at, nil
	}
	now, err := rdb.Time(ctx).Result()
	if err != nil {
		return now, fmt.Errorf("read the clock of Redis: %w", err)
	}
	return m.From(now), nil
}
