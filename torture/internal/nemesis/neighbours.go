package nemesis

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/torture/internal/servers"
)

// takeRights takes timerd's rights to the keys of an app, of which many are due then.
func takeRights(ctx context.Context, s target, f Fault) (func() error, error) {
	err := s.TakeRights(ctx)
	s.crowds.Crowd(ctx, f.kind.app)
	return func() error { return s.GiveRights(ctx) }, err
}

// denySubject has NATS refuse the subjects of an app, of which many timers are due then.
func denySubject(ctx context.Context, s target, f Fault) (func() error, error) {
	err := s.NATS.Deny(ctx)
	s.crowds.Crowd(ctx, f.kind.app)
	return func() error { return s.NATS.Allow(ctx) }, err
}

// fillDeadLetters has the stream of dead letters take none, when many are to come.
func fillDeadLetters(ctx context.Context, s target, f Fault) (func() error, error) {
	err := s.NATS.FillDeadLetters(ctx)
	s.crowds.Crowd(ctx, f.kind.app)
	return func() error { return s.NATS.EmptyDeadLetters(ctx) }, err
}

// crowd is a fault of producers alone.
func crowd(ctx context.Context, s target, f Fault) (func() error, error) {
	s.crowds.Crowd(ctx, f.kind.app)
	return nothing, nil
}

// evictKeys has Redis evict the keys of timers, until the policy is set right.
func evictKeys(ctx context.Context, s target, _ Fault) (func() error, error) {
	return func() error { return s.EndEviction(ctx) }, s.Evict(ctx)
}

// redisAhead has Redis's clock be ahead by some seconds at its start, and right after that, while no timerd runs.
func redisAhead(ctx context.Context, s target, f Fault) (func() error, error) {
	r, ok := s.Redis.(*servers.SingleRedis)
	if !ok {
		return nil, fmt.Errorf("nemesis: the clock of Redis is not stepped in the shape %s", s.Shape)
	}
	heal, err := killTimerds(ctx, s, f)
	by := time.Duration(3+f.Pick%6) * time.Second
	return heal, errors.Join(err, r.RestartAhead(ctx, by))
}

// putClockRight kills all timerds and makes the claims, pauses and heartbeats that they leave behind those of clocks of Redis that were 1,
// 2, 4 … 32 minutes ahead, and have just been put right. The clocks themselves are not touched: timers keep their due times.
func putClockRight(ctx context.Context, s target, f Fault) (func() error, error) {
	heal, err := killTimerds(ctx, s, f)
	by := time.Minute << (f.Pick % 6)
	return heal, errors.Join(err, onMasters(ctx, s, func(c *redis.Client) error { return servers.PutAhead(ctx, c, by) }))
}
