package schedule_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// longestPipeline notes the greatest number of commands that a client has sent at a time.
type longestPipeline struct {
	redis.Hook
	most atomic.Int64
}

func (l *longestPipeline) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (l *longestPipeline) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (l *longestPipeline) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		l.most.Store(max(l.most.Load(), int64(len(commands))))
		return next(ctx, commands)
	}
}

// Redis runs a pipeline at a stretch, and a payload may have 256 KiB: so few timers are moved at a time.
func TestMoveIsShortForRedis(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	mover, tests := server.Client(), server.Client()
	x := newIndexFor(t, mover, tests, 1000)
	var moves []schedule.Move
	for i := range 100 {
		key, err := keys.Parse(fmt.Sprint("shop:order:timeout:", i))
		if err != nil {
			t.Fatal(err)
		}
		x.do("FCALL", "timer_set", 1, key.String(), "p", "PX", 3_600_000)
		moves = append(moves, schedule.Move{Which: x.found(key.String(), false), To: time.Now().Add(2 * time.Hour)})
	}
	longest := &longestPipeline{}
	mover.AddHook(longest)
	results, err := x.Move(t.Context(), moves)
	if err != nil || len(results) != len(moves) || results[99].Outcome != schedule.MoveDone {
		t.Fatalf("%+v, %v", results, err)
	}
	if most := longest.most.Load(); most == 0 || most > 8 {
		t.Errorf("%d timers were moved at a time", most)
	}
}
