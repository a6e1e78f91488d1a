package holds_test

import (
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/test/system"
)

// setFar sets n timers of an app that are due one ms after the other.
func setFar(s *system.System, rdb *redis.Client, app string, n int, in time.Duration) {
	s.T.Helper()
	const some = 2000 // fit into one reply's time
	for first := 0; first < n; first += some {
		_, err := rdb.Pipelined(s.T.Context(), func(pipe redis.Pipeliner) error {
			for i := first; i < min(first+some, n); i++ {
				pipe.FCall(s.T.Context(), "timer_set", []string{fmt.Sprintf("%s:m:t:%d", app, i)}, "p", "PX",
					in.Milliseconds()+int64(i))
			}
			return nil
		})
		if err != nil {
			s.T.Fatal(err)
		}
	}
}
