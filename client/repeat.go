package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/cron"
)

// Repetition says when a timer that repeats is due: Every or Cron. The zero Repetition is invalid.
type Repetition struct {
	args []any
	zone string
}

// Every makes a timer due again and again, always so long after the time before, however late its events are. The interval is
// rounded up to whole milliseconds, and is from 100 ms to 10 years. It counts from the call, or from what From says.
func Every(interval time.Duration) Repetition {
	return Repetition{args: []any{"EVERY", roundedUp(interval)}}
}

// Cron makes a timer due whenever the clock of a zone shows what a cron expression says: five fields, or six with the second
// first. The zone is one of the IANA database, such as Europe/Berlin; none is UTC. Package repeat says what the fields
// mean, and what happens where the clock is changed.
func Cron(expression, zone string) Repetition {
	r := Repetition{args: []any{"CRON", expression}, zone: zone}
	if zone != "" {
		r.args = append(r.args, "TZ", zone)
	}
	return r
}

// From is for Repeat alone: nothing is due before t, and the interval of Every counts from there.
func From(t time.Time) SetOption { return SetOption{[]any{"FROM", t.UnixMilli()}} }

// Until is for Repeat alone: t is the last moment at which the timer may be due.
func Until(t time.Time) SetOption { return SetOption{[]any{"UNTIL", t.UnixMilli()}} }

// Times is for Repeat alone: the timer fires n times in all.
func Times(n int) SetOption { return SetOption{[]any{"TIMES", n}} }

// CatchUp is for Repeat alone: of what was missed while no timerd could publish, that of the last d fires in order. Without it
// what was missed is skipped, but for the one that was pending.
func CatchUp(d time.Duration) SetOption { return SetOption{[]any{"CATCHUP", roundedUp(d)}} }

// Repeat sets a timer that repeats, and returns when it is due first: the zero Time for Cron, since a timerd finds it, within
// milliseconds where one runs. Each occurrence fires as any timer, and its settlement arms the next one. It replaces what is
// pending of the key, as Set does, a repetition too; Set makes it a single timer again, and Cancel ends it. The options are NX,
// XX, Late, DropLate, From, Until, Times and CatchUp.
//
// Repeat returns errors that wrap ErrNotSet, ErrInvalid or ErrNoLibrary. A zone that neither this machine nor Go's own database knows is
// invalid; one that no timerd knows becomes a dead letter of the timer.
func (t *Timers) Repeat(ctx context.Context, key string, payload []byte, by Repetition, opts ...SetOption) (first time.Time, err error) {
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
