package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// manyBatch limits the calls that SetMany and CancelMany send at a time: more save next to nothing, and each keeps its
// reply in memory.
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
// results always has one for each setting. The error has the number of failures and wraps the first one. ErrNotSet is
// not a failure.
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
// own result, and results always has one for each key. The error has the number of keys with an unknown outcome, and
// wraps the first failure. An outcome other than Cancelled is not a failure.
func (t *Timers) CancelMany(ctx context.Context, keys []string) (results []CancelResult, err error) {
	return t.cancelMany(ctx, len(keys), func(i int) cancellation { return cancellation{key: keys[i]} })
}

// Due names a timer for CancelDue: its key and its due time, as returned by Set, Get and timerd ls.
type Due struct {
	Key string
	Due time.Time
	// Alone cancels only the timer with exactly this due time; earlier timers of the key stay.
	Alone bool
}

// CancelDue is CancelMany for timers from a list: it cancels the timers of each key that are due at the given time or
// earlier. A timer set or moved to a later time since then stays; the outcome is Unknown if the key has no other. The
// error wraps ErrInvalid if the function library in Redis is too old to know CancelDue or Due.Alone.
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
func (t *Timers) cancelMany(ctx context.Context, n int, get func(
	int) cancellation) (results []CancelResult, err error) {
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

// many makes n calls of the function library, manyBatch in a pipeline. add adds a call to the pipeline, or returns nil
// if it has no call to make. take gets the reply, or nil, and returns the call's failure, if any. many returns the
// number of failures, and the first failure.
func (t *Timers) many(ctx context.Context, n int, add func(redis.Pipeliner, int) *redis.Cmd,
	take func(int, *redis.Cmd) error) (failed int, err error) {
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

// unrepeated is a pipeline to a cluster that go-redis does not send a second time. Still, go-redis follows moved slots
// call by call. An ordinary pipeline is sent again if its first call is refused, as while a slot moves. Then successful
// calls get the replies of their second run.
type unrepeated struct{ redis.Pipeliner }

// FCall implements [redis.Cmdable].
func (p unrepeated) FCall(ctx context.Context, function string, keys []string, args ...any) *redis.Cmd {
	call := []any{"fcall", function, len(keys)}
	for _, key := range keys {
		call = append(call, key)
	}
	cmd := redis.NewCmd(ctx, append(call, args...)...)
	cmd.SetFirstKeyPos(3)
	_ = p.Process(ctx, sentOnce{cmd}) // only adds it
	return cmd
}

// sentOnce is a command whose pipeline go-redis does not send again.
type sentOnce struct{ *redis.Cmd }

// NoRetry implements [redis.Cmder].
func (sentOnce) NoRetry() bool { return true }
