package query

import (
	"context"
	"regexp"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/schedule"
)

// Elsewhere returns another database of a single Redis that a living timerd serves, and which; ok is false if there is none
// as far as can be told.
func Elsewhere(ctx context.Context, node *schedule.Node) (db int, instance string, ok bool) {
	own := *node.Server().Options()
	keyspace, err := node.Server().Info(ctx, "keyspace").Result()
	if err != nil || node.Name() != "" {
		return 0, "", false
	}
	for _, found := range regexp.MustCompile(`(?m)^db(\d+):`).FindAllStringSubmatch(keyspace, -1) {
		other := own
		if other.DB, err = strconv.Atoi(found[1]); err != nil || other.DB == own.DB {
			continue
		}
		rdb := redis.NewClient(&other)
		members, err := Members(ctx, schedule.New(rdb, schedule.DefaultMaxPayload))
		_ = rdb.Close() // nothing is pending on it
		for _, m := range members {
			if err == nil && m.Alive {
				return other.DB, m.Instance, true
			}
		}
	}
	return 0, "", false
}
