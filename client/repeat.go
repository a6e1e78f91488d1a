package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/cron"
)

// Repetition is the rhythm of a repeating timer: Every or Cron. The zero Repetition is invalid.
type Repetition struct {
	args []any
	zone string
}

// Every makes a timer due at a fixed interval. Each due time counts from the one before, even if events are late. The
// interval is from 100 ms to 10 years, rounded up to whole milliseconds. It counts from the call, or from the time of
// From.
func Every(interval time.Duration) Repetition {
	return Repetition{args: []any{"EVERY", roundedUp(interval)}}
}

// Cron makes a timer due at the times that match a cron expression in a time zone. The expression has five fields, or
// six with the second first. The zone is one of the IANA database, such as Europe/Berlin; an empty one is UTC.
// docs/repeating.md explains the fields, and what happens when the clock changes.
func Cron(expression, zone string) Repetition {
	r := Repetition{args: []any{"CRON", expression}, zone: zone}
	if zone != "" {
		r.args = append(r.args, "TZ", zone)
	}
	return r
}

// From is for Repeat alone: no occurrence is due before t, and the interval of Every counts from t.
func From(t time.Time) SetOption { return SetOption{[]any{"FROM", t.UnixMilli()}} }

// Until is for Repeat alone: t is the last possible due time.
func Until(t time.Time) SetOption { return SetOption{[]any{"UNTIL", t.UnixMilli()}} }

// Times is for Repeat alone: the timer fires n times in all.
func Times(n int) SetOption { return SetOption{[]any{"TIMES", n}} }

// CatchUp is for Repeat alone. Then occurrences missed within the last d, while no timerd could publish, fire in order.
// Without it only the pending one fires, and the others are skipped.
func CatchUp(d time.Duration) SetOption { return SetOption{[]any{"CATCHUP", roundedUp(d)}} }

// Repeat sets a repeating timer, and returns its first due time. For Cron it returns the zero Time: a timerd computes
// the first due time, within milliseconds if one is running. Each occurrence fires like any timer, and its settlement
// sets the next one. Repeat replaces the pending timer of the key, as Set does, even one that repeats. Set makes it a
// single timer again, and Cancel ends it. The options are NX, XX, Late, DropLate, Unless, If, From, Until, Times and
// CatchUp. An occurrence that a guard stops is left out; the next one follows.
//
// Repeat returns errors that wrap ErrNotSet, ErrInvalid or ErrNoLibrary. A zone unknown to both this machine and Go's
// own database is invalid. If timerd does not know the zone, the timer becomes a dead letter.
func (t *Timers) Repeat(ctx context.Context, key string, payload []byte, by Repetition,
	opts ...SetOption) (first time.Time, err error) {
	if len(by.args) == 0 {
		return time.Time{}, fmt.Errorf("client: repeat %q: %w: no repetition given, use Every or Cron", key, ErrInvalid)
	}
	if err := cron.CheckZone(by.zone); err != nil {
		return time.Time{}, fmt.Errorf("client: repeat %q: %w: %w", key, ErrInvalid, err)
	}
	args := append([]any{payload}, by.args...)
	for _, o := range opts {
		args = append(args, o.args...)
	}
	reply, err := t.rdb.FCall(ctx, "timer_repeat", []string{key}, args...).Result()
	ms, isDue := reply.(int64)
	switch {
	case errors.Is(err, redis.Nil):
		return time.Time{}, fmt.Errorf("client: repeat %q: %w", key, ErrNotSet)
	case err != nil:
		return time.Time{}, fmt.Errorf("client: repeat %q: %w", key, explain(err))
	case isDue:
		return time.UnixMilli(ms).UTC(), nil
	}
	return time.Time{}, nil
}
