package admin

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/timerd-io/timerd/schedule"
)

// turnFor is the length of a turn that its holder does not renew.
const turnFor = 3 * time.Second

// turn is a work that one of several callers does at a time. It saves work; correctness needs none.
type turn struct {
	schedule *schedule.Schedule
	name     string // the key of its holder
	caller   string // unlike all others
}

// take reports whether this caller, and nobody else, has the turn for the next seconds. It renews one that it has.
func (t turn) take(ctx context.Context) (taken bool, err error) {
	rdb := t.schedule.Client()
	taken, err = rdb.SetNX(ctx, t.name, t.caller, turnFor).Result()
	if err == nil && !taken {
		var left time.Duration // a clock that was ahead may have set it to more than a turn
		var holder string
		if holder, err = rdb.Get(ctx, t.name).Result(); err == nil {
			left, err = rdb.PTTL(ctx, t.name).Result()
		}
		if err == nil && (holder == t.caller || left > turnFor+schedule.AheadBy) {
			taken, err = rdb.SetXX(ctx, t.name, t.caller, turnFor).Result()
		}
	}
	if err != nil {
		return false, fmt.Errorf("take the lock %s: %w", t.name, err)
	}
	return taken, nil
}

// leave ends this caller's turn, so that another can have it at once.
func (t turn) leave(ctx context.Context, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	rdb := t.schedule.Client()
	if holder, err := rdb.Get(ctx, t.name).Result(); err != nil || holder != t.caller {
		return // the turn expires by itself
	}
	if err := rdb.Del(ctx, t.name).Err(); err != nil {
		log.Debug("cannot end this timerd's turn; it expires by itself", "err", err)
	}
}
