package main

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/moment"
	"github.com/timerd-io/timerd/schedule"
)

// instantOf returns the instant of a moment, by the clock of Redis.
func instantOf(ctx context.Context, m moment.Moment, rdb redis.UniversalClient) (time.Time, error) {
	if at, ok := m.Instant(); ok {
		return at, nil
	}
	now, err := clockOf(ctx, rdb)
	return m.From(now), err
}

// clockOf returns what the clock of Redis shows: in a cluster that of the first master that answers.
func clockOf(ctx context.Context, rdb redis.UniversalClient) (time.Time, error) {
	return schedule.New(rdb, schedule.DefaultMaxPayload).Clock(ctx)
}
