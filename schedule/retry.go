package schedule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
)

// Retry asks for a timer to be set again after a failed attempt, or because it was postponed or is replayed.
type Retry struct {
	EventID string // of the firing before it
	Key     keys.Key
	Due     Millis
	Attempt int // the one it will fire as
	Payload []byte
	Status  Status
	Late    policy.Limit  // its own, counted from Due
	Guards  policy.Guards // its own
	Origin  Origin        // the timer's first firing
	// Replayed is the time of the timer's replay from a dead letter, or 0.
	Replayed Millis
	// TraceParent and TraceState are fields of the event that the payload does not have; "" for none.
	TraceParent, TraceState string
	// Repeat and Occurrence are fields of the event, for its own: empty and 0 for a timer that does not repeat.
	Repeat     string
	Occurrence int64
}

// ErrTooManyRetries says that the limit of retries that wait beside a key's newer timer is reached.
var ErrTooManyRetries = errors.New("too many retries wait beside a newer timer of this key")

// tooManyRetries is the script's reply in that case.
const tooManyRetries = -2

// Retry sets a timer again, once per event id however often it is called, until TrimRetried forgets the id. It returns
// when the timer is due, or ok false where the event's retry was set before. If the key was set again, the retry waits
// beside the newer timer and both fire; if too many wait there, the error is ErrTooManyRetries. A retry whose due time
// has passed fires at once. A guard of another slot of a cluster is an ErrGuardSlot. If another event has its id, the
// retry's due time moves by some ms. After any other error it may or may not have been set; calling again is safe.
func (s *Schedule) Retry(ctx context.Context, r Retry) (due Millis, ok bool, err error) {
	header := map[Status]string{PayloadMissing: "m", PayloadTooLarge: "l"}[r.Status] + options(r.Late) +
		guardOptions(r.Guards) +
		r.Origin.option() + replayedOption(r.Replayed) +
		traceOptions(r.TraceParent, r.TraceState) + occurrenceOption(r.Repeat, r.Occurrence)
	key := r.Key.String()
	if err := s.checkSlots(key, r.Guards); err != nil {
		return 0, false, fmt.Errorf("schedule: retry %q: %w", r.Key, err)
	}
	reply, err := s.Run(ctx, s.step("retry"), []Call{{Partition: s.Partition(key),
		Args: []any{r.EventID, key, int64(r.Due), r.Attempt, header, r.Payload}}})[0].Int64()
	if err != nil {
		return 0, false, fmt.Errorf("schedule: retry %q: %w", r.Key, err)
	}
	if reply == tooManyRetries {
		return 0, false, fmt.Errorf("schedule: retry %q: %w", r.Key, ErrTooManyRetries)
	}
	return Millis(reply), reply >= 0, nil
}

// IsRetried reports whether the retry of an event id was set before, so that Retry would not set it.
func (s *Schedule) IsRetried(ctx context.Context, key keys.Key, id string) (bool, error) {
	err := s.rdb.ZScore(ctx, s.Partition(key.String()).Retried(), id).Err()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("schedule: look for the retry of %q: %w", key, err)
	}
	return true, nil
}

// trimRetried bounds the event ids of a partition that one TrimRetried forgets.
const trimRetried = 1000

// trimTimeout bounds the wait for one server.
const trimTimeout = 2 * time.Second

// TrimRetried forgets the ids of events whose retry was set longer than age ago, by the clock of their server. Do not
// call it while earlier requests are still unacknowledged, or their retries are set again. All servers are asked at
// once; an *AwayError has those on which it failed.
func (s *Schedule) TrimRetried(ctx context.Context, age time.Duration) error {
	masters, err := s.topology.masters(ctx)
	if err != nil {
		return fmt.Errorf("schedule: trim retried events: %w", err)
	}
	err = askAll(ctx, masters, trimTimeout, func(ctx context.Context, m Master) error {
		now, err := m.Server.Time(ctx).Result()
		if err != nil {
			return err
		}
		args := []any{int64(MillisOf(now.Add(-age))), trimRetried}
		return m.RunOver(ctx, s.step("trim"), Chunk, args, (*redis.Cmd).Err)
	})
	if err != nil {
		return fmt.Errorf("schedule: trim retried events: %w", err)
	}
	return nil
}
