package query

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/schedule"
)

// fewTimers is how many timers of a key may be owed, held or firing, and how many may wait beside its newest, for it to be none of
// a crowd.
const fewTimers = 4

// Crowded reports for each key, in order, whether it has many timers that are owed or held, or that wait beside newer ones. A step on all
// of a key's timers, such as to cancel them, takes Redis some milliseconds then instead of some microseconds. Redis runs the steps
// that come in one round trip at a stretch: so those on such keys should come one by one.
func Crowded(ctx context.Context, s *schedule.Schedule, names []string) ([]bool, error) {
	crowded := make([]bool, len(names))
	pipe := s.Client().Pipeline()
	var found []*redis.StringSliceCmd
	for _, name := range names {
		p := s.Partition(name)
		for _, set := range []string{p.Owed(), p.Beside()} { // they have the names of a key as a range: <length of key>:<key>:…
			found = append(found, pipe.ZRangeArgs(ctx, redis.ZRangeArgs{
				Key: set, ByLex: true, Start: fmt.Sprintf("[%d:%s:", len(name), name), Stop: fmt.Sprintf("(%d:%s;", len(name), name), Offset: fewTimers, Count: 1,
			}))
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("schedule: look how many timers some keys have: %w", err)
	}
	for i, reply := range found {
		crowded[i/2] = crowded[i/2] || len(reply.Val()) > 0
	}
	return crowded, nil
}
