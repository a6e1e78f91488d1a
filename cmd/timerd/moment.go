package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// moment is a point in time as an argument gives it.
type moment struct {
	at time.Time     // an instant, or the zero Time:
	in time.Duration // so long from now
}

// parseMoment reads a duration with days, an instant, or @unix-ms.
func parseMoment(s string) (moment, error) {
	if ms, ok := strings.CutPrefix(s, "@"); ok {
		n, err := strconv.ParseInt(ms, 10, 64)
		if err != nil {
			return moment{}, fmt.Errorf("%q: want milliseconds since 1970 after the @", s)
		}
		return moment{at: time.UnixMilli(n)}, nil
	}
	if d, err := parseDuration(s); err == nil {
		return moment{in: d}, nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return moment{at: t}, nil
	}
	return moment{}, fmt.Errorf("%q: want a duration such as 90s, 1h30m or 30d, an instant such as 2026-11-20T09:00:00Z, or @unix-ms", s)
}

// from returns the instant, where a duration begins now.
func (m moment) from(now time.Time) time.Time {
	if m.at.IsZero() {
		return now.Add(m.in)
	}
	return m.at
}

// on is from by the clock of Redis.
func (m moment) on(ctx context.Context, rdb redis.UniversalClient) (time.Time, error) {
	if !m.at.IsZero() {
		return m.at, nil
	}
	now, err := rdb.Time(ctx).Result()
	if err != nil {
		return now, fmt.Errorf("read the clock of Redis: %w", err)
	}
	return m.from(now), nil
}
