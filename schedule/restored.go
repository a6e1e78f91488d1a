package schedule

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
)

// Wait is the wait of the timers of a Redis that may have older data than before: it restarted, was promoted, or has
// got a backup. Each claim finds out whether it is one, in the step itself.
type Wait struct {
	Until  Millis // timers due until then wait; when it was found out
	Last   Millis // the last heartbeat of a timerd that the data have
	Timers int64  // how many wait, about; holds may keep some of them
}

// waitField is the field of data with the last wait; see lua/lib/restored.lua.
const waitField = ":w:"

// parseWait reads that field. waits is false if it has ended, or there was none.
func parseWait(text string) (w Wait, waits bool) {
	until, last, _ := strings.Cut(text, " ")
	u, err1 := strconv.ParseInt(until, 10, 64)
	l, err2 := strconv.ParseInt(last, 10, 64) // with a third number the wait has ended
	return Wait{Until: Millis(u), Last: Millis(l)}, err1 == nil && err2 == nil
}

// Waiting returns the wait of the schedule's timers. waits is false if none wait, as always in a cluster.
func (s *Schedule) Waiting(ctx context.Context) (w Wait, waits bool, err error) {
	text, err := s.rdb.HGet(ctx, keys.Single.Data(), waitField).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return Wait{}, false, fmt.Errorf("schedule: read what waits in a restored Redis: %w", err)
	}
	if w, waits = parseWait(text); !waits {
		return Wait{}, false, nil
	}
	due := s.rdb.ZCount(ctx, keys.Single.Due(), "-inf", scoreText(w.Until))
	taken := s.rdb.ZCount(ctx, keys.Single.Firing(), scoreText(heldScore), scoreText(heldScore+w.Until))
	if err := errors.Join(due.Err(), taken.Err()); err != nil {
		return Wait{}, false, fmt.Errorf("schedule: count what waits in a restored Redis: %w", err)
	}
	w.Timers = due.Val() + taken.Val()
	return w, true, nil
}

func scoreText(m Millis) string { return strconv.FormatInt(int64(m), 10) }

// EndWait frees the timers that wait, but for those on hold. It does nothing if that wait has ended. In a restart of
// timerd, or of Redis, some may stay until the next minute.
func (s *Schedule) EndWait(ctx context.Context, w Wait) error {
	calls := []Call{{Partition: keys.Single, Args: []any{int64(w.Until)}}}
	if err := s.Run(ctx, s.step("end_wait"), calls)[0].Err(); err != nil {
		return fmt.Errorf("schedule: free what waits in a restored Redis: %w", err)
	}
	// A change of the list has a timerd look for held timers that no hold covers. Without holds it looks all the time.
	list, err := s.Holds(ctx)
	if err == nil && len(list.Holds) > 0 {
		err = list.Renew(ctx)
	}
	if err != nil {
		return fmt.Errorf("schedule: free what waits in a restored Redis: %w", err)
	}
	return nil
}

// SetDuplicates sets the duplicate window of the stream of firings. A failover or restart is forgiven if timerd was
// seen in the first half of it: within the other half JetStream drops second events. Default: 0, none is.
func (s *Schedule) SetDuplicates(window time.Duration) { s.forgiven.Store((window / 2).Milliseconds()) }

// lastWait is the last wait that has ended, as a claim tells of it.
type lastWait struct {
	until, lastSeen Millis
	took            time.Duration // 0: it was forgiven
}

// apply notes what the wait means for a firing.
func (w lastWait) apply(f *Firing) {
	switch {
	case f.Due > w.until:
	case w.took > 0:
		f.Waited = w.took
	case f.Due >= w.lastSeen.Add(-f.Lease):
		f.MayBeStored = f.MayBeStored || f.Refusal == policy.Refusal{}
	}
}
