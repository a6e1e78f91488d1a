package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// manyBatch is how many calls SetMany and CancelMany send at a time: more of them save next to nothing, and every one
// waits in memory for its reply.
const manyBatch = 512

// Setting is one timer for SetMany. Its fields are the arguments of Set.
type Setting struct {
	Key     string
	Payload []byte
	When    When
	Options []SetOption
}

// SetResult is the result for one Setting, as Set returns it.
type SetResult struct {
	Due time.Time
	Err error
}

// SetMany sets many timers in few round trips, in their order. It is not atomic: each timer has its own result, and
// results always has one for each setting. The error says how many failed and wraps the first failure. ErrNotSet is not
// a failure.
func (t *Timers) SetMany(ctx context.Context, settings []Setting) (results []SetResult, err error) {
	results = make([]SetResult, len(settings))
	trace := t.trace(ctx)
	failed, err := t.many(ctx, len(settings),
		func(pipe redis.Pipeliner, i int) *redis.Cmd {
			s := settings[i]
			if results[i].Err = s.check(); results[i].Err != nil {
				return nil
			}
			return pipe.FCall(ctx, "timer_set", []string{s.Key}, s.args(trace)...)
		},
		func(i int, reply *redis.Cmd) error {
			if reply != nil {
				results[i].Due, results[i].Err = settings[i].result(reply)
			}
			if errors.Is(results[i].Err, ErrNotSet) {
				return nil
			}
			return results[i].Err
		})
	if err != nil {
		err = fmt.Errorf("client: %d of %d timers could not be set; the first: %w", failed, len(settings), err)
	}
	return results, err
}

// CancelResult is the result for one key, as Cancel returns it.
type CancelResult struct {
	Outcome Outcome // empty if Err is not nil
	Err     error
}

// CancelMany cancels many timers in few round trips, in the order of their keys. It is not atomic: each timer has its
// own result, and results always has one for each key. The error says for how many keys the outcome is unknown, and
// wraps the first failure. An outcome other than Cancelled is not a failure.
func (t *Timers) CancelMany(ctx context.Context, keys []string) (results []CancelResult, err error) {
	return t.cancelMany(ctx, len(keys), func(i int) cancellation { return cancellation{key: keys[i]} })
}

// Due names a timer for CancelDue: its key and its due time, as Set, Get and timerd ls give it.
type Due struct {
	Key string
	Due time.Time
	// Alone cancels just this one of several timers of the key; those due earlier stay too.
	Alone bool
}

// CancelDue is CancelMany for timers that were listed before: it cancels the timers of each key that are due at the
// given time or earlier. A timer that was set or moved to a later time since then stays; the outcome is Unknown if the
// key has no other. The error wraps ErrInvalid if the function library in Redis is too old to know CancelDue or
// Due.Alone.
func (t *Timers) CancelDue(ctx context.Context, timers []Due) (results []CancelResult, err error) {
	return t.cancelMany(ctx, len(timers), func(i int) cancellation {
		args := []any{"UNTIL", timers[i].Due.UnixMilli()}
		if timers[i].Alone {
			args = append(args, "FROM", timers[i].Due.UnixMilli())
		}
		return cancellation{timers[i].Key, args}
	})
}

// cancelMany makes n cancellations; get returns each of them.
func (t *Timers) cancelMany(ctx context.Context, n int, get func(int) cancellation) (results []CancelResult, err error) {
	results = make([]CancelResult, n)
	failed, err := t.many(ctx, n,
		func(pipe redis.Pipeliner, i int) *redis.Cmd { return get(i).call(ctx, pipe) },
		func(i int, reply *redis.Cmd) error {
			results[i].Outcome, results[i].Err = t.cancelOutcome(ctx, get(i), reply)
			return results[i].Err
		})
	if err != nil {
		err = fmt.Errorf("client: %d of %d timers could not be cancelled; the first: %w", failed, n, err)
	}
	return results, err
}

// many makes n calls of the function library, manyBatch in a pipeline. add adds a call, or returns nil if there is none to
// make. take gets its reply, or nil, and returns what failed, if anything did. It returns how many failed, and the first
// failure.
func (t *Timers) many(ctx context.Context, n int, add func(redis.Pipeliner, int) *redis.Cmd, take func(int, *redis.Cmd) error) (failed int, err error) {
	for first := 0; first < n; first += manyBatch {
		pipe := t.rdb.Pipeline()
		if _, is := t.rdb.(*redis.ClusterClient); is {
			pipe = unrepeated{pipe}
		}
		replies := make([]*redis.Cmd, min(manyBatch, n-first))
		for i := range replies {
			replies[i] = add(pipe, first+i)
		}
		_, _ = pipe.Exec(ctx) // each reply has its own error
		for i, reply := range replies {
			if taken := take(first+i, reply); taken != nil {
				if failed++; failed == 1 {
					err = taken
				}
			}
		}
	}
	return failed, err
}

// unrepeated is a pipeline of a cluster whose calls go-redis follows where slots have moved, but does not send again all together. That
// it does if the first of them is refused, as while its slot moves: the second answers would then be kept of those that have worked.
type unrepeated struct{ redis.Pipeliner }

// FCall implements [redis.Cmdable].
func (p unrepeated) FCall(ctx context.Context, function string, keys []string, args ...any) *redis.Cmd {
	call := []any{"fcall", function, len(keys)}
	for _, key := range keys {
		call = append(call, key)
	}
	cmd := redis.NewCmd(ctx, append(call, args...)...)
	cmd.SetFirstKeyPos(3)
	_ = p.Process(ctx, sentOnce{cmd}) // which only adds it
	return cmd
}

// sentOnce is a command that go-redis does not send again with its pipeline.
type sentOnce struct{ *redis.Cmd }

// NoRetry implements [redis.Cmder].
func (sentOnce) NoRetry() bool { return true }
