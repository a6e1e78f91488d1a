package servers

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// aheadScript adds ARGV[1] ms to the scores of a sorted set that are times later than an hour ago. Other scores are
// marks (schedule/lua/lib/score.lua): 0, or above 2^52.
const aheadScript = `
local now = redis.call('TIME')[1] * 1000
local all = redis.call('ZRANGE', KEYS[1], string.format('%.0f', now - 3600000), 4503599627370495, 'BYSCORE', 'WITHSCORES')
for i = 1, #all, 2 do redis.call('ZADD', KEYS[1], string.format('%.2f', all[i + 1] + ARGV[1]), all[i]) end
return #all / 2`

// PutAhead rewrites the heartbeats, claims and pauses on a server as if its clock had been ahead until now.
func PutAhead(ctx context.Context, c *redis.Client, by time.Duration) error {
	for _, name := range []string{"members", "hearing", "firing"} {
		for scan := c.Scan(ctx, 0, "timerd:*:"+name, 10_000).Iterator(); ; {
			if !scan.Next(ctx) {
				if err := scan.Err(); err != nil {
					return fmt.Errorf("servers: move times ahead: %w", err)
				}
				break
			}
			if err := c.Eval(ctx, aheadScript, []string{scan.Val()}, by.Milliseconds()).Err(); err != nil {
				return fmt.Errorf("servers: move the times of %s ahead: %w", scan.Val(), err)
			}
		}
	}
	return nil
}
