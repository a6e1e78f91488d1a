package query

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/schedule"
)

// fewTimers is the number of owed, held and firing timers up to which a key is not crowded. It is also the limit for
// timers that wait beside the newest one of their key.
const fewTimers = 4

// Crowded reports for each key, in order, whether it has many owed or held timers, or many that wait beside newer ones.
// A step on all of a key's timers, such as a cancellation, then takes Redis milliseconds instead of microseconds. Redis
// runs the steps of one round trip without a break: so steps on crowded keys should come one by one.
func Crowded(ctx context.Context, s *schedule.Schedule, names []string) ([]bool, error) {
	crowded := make([]bool, len(names))
	pipe := s.Client().Pipeline()
	var found []*redis.StringSliceCmd
	for _, name := range names {
		p := s.Partition(name)
		for _, set := range []string{p.Owed(), p.Beside()} {
			// all names of a key begin with <length of key>:<key>:
			found = append(found, pipe.ZRangeArgs(ctx, redis.ZRangeArgs{
				Key: set, ByLex: true, Start: fmt.Sprintf("[%d:%s:", len(name), name),
				Stop: fmt.Sprintf("(%d:%s;", len(name), name), Offset: fewTimers, Count: 1,
			}))
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("schedule: count the timers of some keys: %w", err)
	}
	for i, reply := range found {
		crowded[i/2] = crowded[i/2] || len(reply.Val()) > 0
	}
	return crowded, nil
}
