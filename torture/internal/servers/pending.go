package servers

import (
	"context"

	"github.com/timerd-io/timerd/keys"
)

// Pending returns the number of timers in the schedule on all masters, firing ones included.
func Pending(ctx context.Context, r Redis) (int64, error) {
	masters, err := r.Masters(ctx)
	if err != nil {
		return 0, err
	}
	var total int64
	for _, c := range masters {
		for _, pattern := range []string{keys.Partition("*").Due(), keys.Partition("*").Firing()} {
			found := c.Scan(ctx, 0, pattern, 1000).Iterator()
			for found.Next(ctx) {
				n, err := c.ZCard(ctx, found.Val()).Result()
				if err != nil {
					return 0, err
				}
				total += n
			}
			if err := found.Err(); err != nil {
				return 0, err
			}
		}
	}
	return total, nil
}
