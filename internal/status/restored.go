package status

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/schedule"
)

// Restored says that timers wait to be compared with the streams, as a server may have older data than before.
type Restored struct {
	Server   string    `json:"server,omitempty"` // host:port of a master of a cluster
	Until    time.Time `json:"until"`            // timers due until then wait
	LastSeen time.Time `json:"lastseen"`         // the last heartbeat of a timerd that the data have
	Timers   int64     `json:"timers"`           // how many wait, about

	ahead bool                 // LastSeen is of a clock that was ahead
	short *history.ShortStream // why they cannot be compared; nil unless the stream does not reach back far enough
}

// restoredOf returns the waits of a schedule.
func restoredOf(waits []schedule.Wait) (all []Restored) {
	for _, w := range waits {
		all = append(all, Restored{Server: w.Server, Until: w.Until.Time(), LastSeen: w.Last.Time(), Timers: w.Timers,
			ahead: w.Ahead})
	}
	return all
}

// gatherRestored finds out whether the timers of restored servers can be compared.
func (f *facts) gatherRestored(ctx context.Context) {
	if f.redis == nil || f.nats == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	for i := range f.redis.Restored {
		r := &f.redis.Restored[i]
		name := f.Streams.FiredStream()
		since, err := history.Before(ctx, f.JetStream, name, r.LastSeen)
		if err == nil {
			err = history.CheckReach(ctx, f.JetStream, name, since, r.LastSeen)
		}
		r.short, _ = errors.AsType[*history.ShortStream](err)
	}
}

// checkRestored reports timers of restored servers that wait.
func checkRestored(f *facts, p *diag.Findings) {
	if f.redis == nil {
		return
	}
	for _, r := range f.redis.Restored {
		r.check(f.Streams.FiredStream(), p)
	}
}

// check reports the timers that wait on one server. stream is the name of the stream of firings.
func (r Restored) check(stream string, p *diag.Findings) {
	text := fmt.Sprintf("%s has data of %s, the last sign of a timerd, and was restarted or restored since: %s, "+
		"due until %s", strings.TrimSpace("Redis "+r.Server), r.LastSeen.Format(timeLayout),
		count(r.Timers, "timer waits", "timers wait"), r.Until.Format(timeLayout))
	switch {
	case r.ahead:
		p.Fail("timerd reconcile --since, with a time shortly before the data was saved", "%s; nothing compares them, "+
			"as that sign is of a clock that was ahead", text)
	case r.short == nil:
		p.Warn("wait until a timerd has compared them with "+stream+"; if none runs: timerd reconcile", "%s", text)
	default:
		p.Fail("timerd status --acknowledge fires all of them, also fired ones"+since(r.short), "%s; %v", text,
			r.short)
	}
}

// since names the command that compares as far as a stream reaches back.
func since(short *history.ShortStream) string {
	if short.From.IsZero() {
		return ""
	}
	return "; before, for the time since then: timerd reconcile --since " + short.From.UTC().Format(time.RFC3339Nano)
}
