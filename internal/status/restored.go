package status

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/schedule"
)

// Restored says that timers wait to be compared with the streams, as Redis may have older data than before.
type Restored struct {
	Until    time.Time `json:"until"`    // timers due until then wait
	LastSeen time.Time `json:"lastseen"` // the last heartbeat of a timerd that the data have
	Timers   int64     `json:"timers"`   // how many wait, about

	short *history.ShortStream // why they cannot be compared; nil unless the stream does not reach back far enough
}

// gatherRestored finds out whether the timers of a restored Redis can be compared.
func (f *facts) gatherRestored(ctx context.Context) {
	if f.redis == nil || f.redis.Restored == nil || f.nats == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	name, last := f.Streams.FiredStream(), f.redis.Restored.LastSeen
	since, err := history.Before(ctx, f.JetStream, name, last)
	if err == nil {
		err = history.CheckReach(ctx, f.JetStream, name, since, last)
	}
	f.redis.Restored.short, _ = errors.AsType[*history.ShortStream](err)
}

// checkRestored reports timers of a restored Redis that wait.
func checkRestored(f *facts, p *diag.Findings) {
	if f.redis == nil || f.redis.Restored == nil {
		return
	}
	r := f.redis.Restored
	text := fmt.Sprintf("Redis has data of %s, the last sign of a timerd, and was restarted or restored since: %s, "+
		"due until %s", r.LastSeen.Format(timeLayout), count(r.Timers, "timer waits", "timers wait"),
		r.Until.Format(timeLayout))
	if r.LastSeen.After(r.Until.Add(schedule.AheadBy)) {
		p.Fail("timerd reconcile --since, with a time shortly before the data was saved", "%s; nothing compares them, "+
			"as that sign is of a clock that was ahead", text)
		return
	}
	if r.short == nil {
		p.Warn("wait until a timerd has compared them with "+f.Streams.FiredStream()+
			"; if none runs: timerd reconcile", "%s", text)
		return
	}
	p.Fail("timerd status --acknowledge fires all of them, also fired ones"+since(r.short), "%s; %v", text,
		r.short)
}

// since names the command that compares as far as a stream reaches back.
func since(short *history.ShortStream) string {
	if short.From.IsZero() {
		return ""
	}
	return "; before, for the time since then: timerd reconcile --since " + short.From.UTC().Format(time.RFC3339Nano)
}
