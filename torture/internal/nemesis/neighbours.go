package nemesis

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/torture/internal/servers"
)

// takeRights takes away timerd's rights to the keys of an app with many due timers.
func takeRights(ctx context.Context, s target, f Fault) (func() error, error) {
	err := s.TakeRights(ctx)
	s.crowds.Crowd(ctx, f.kind.app)
	return func() error { return s.GiveRights(ctx) }, err
}

// denySubject makes NATS refuse the subjects of an app with many due timers.
func denySubject(ctx context.Context, s target, f Fault) (func() error, error) {
	err := s.NATS.Deny(ctx)
	s.crowds.Crowd(ctx, f.kind.app)
	return func() error { return s.NATS.Allow(ctx) }, err
}

// fillDeadLetters makes the stream of dead letters refuse further letters while many are to come.
func fillDeadLetters(ctx context.Context, s target, f Fault) (func() error, error) {
	err := s.NATS.FillDeadLetters(ctx)
	s.crowds.Crowd(ctx, f.kind.app)
	return func() error { return s.NATS.EmptyDeadLetters(ctx) }, err
}

// crowd is a fault in which a producer sets too many timers, and nothing is broken.
func crowd(ctx context.Context, s target, f Fault) (func() error, error) {
	s.crowds.Crowd(ctx, f.kind.app)
	return nothing, nil
}

// evictKeys makes Redis evict the keys of timers, until the policy is corrected.
func evictKeys(ctx context.Context, s target, _ Fault) (func() error, error) {
	return func() error { return s.EndEviction(ctx) }, s.Evict(ctx)
}

// redisAhead starts Redis with a clock that is some seconds ahead. The clock is corrected right after the start, and no
// timerd runs meanwhile.
func redisAhead(ctx context.Context, s target, f Fault) (func() error, error) {
	r, ok := s.Redis.(*servers.SingleRedis)
	if !ok {
		return nil, fmt.Errorf("nemesis: the clock of Redis is not stepped in the shape %s", s.Shape)
	}
	heal, err := killTimerds(ctx, s, f)
	by := time.Duration(3+f.Pick%6) * time.Second
	return heal, errors.Join(err, r.RestartAhead(ctx, by))
}

// putClockRight kills all timerds. Then it rewrites their claims, pauses and heartbeats as if Redis's clocks had been
// 1, 2, 4 … 32 minutes ahead and had just been corrected. The clocks themselves stay as they are, and timers keep their
// due times.
func putClockRight(ctx context.Context, s target, f Fault) (func() error, error) {
	heal, err := killTimerds(ctx, s, f)
	by := time.Minute << (f.Pick % 6)
	return heal, errors.Join(err, onMasters(ctx, s, func(c *redis.Client) error {
		return servers.PutAhead(ctx, c, by)
	}))
}
