package schedule

import (
	"context"
	"time"

	"github.com/timerd-io/timerd/keys"
)

type Inspection struct {
	Now     time.Time
	Timers  []Inspected
	More    bool
	Unsure  bool
	Trigger TriggerKey
	FiredAt time.Time
	Repeats bool
}
type Inspected struct {
	Timer
	Until   time.Time
	Hold    *Hold
	Perhaps bool
}
type TriggerKey struct {
	There, Persistent, Denied bool
	Expires                   time.Time
}

func (s *Schedule) Inspect(ctx context.Context, key keys.Key, payload int) (Inspection, error) {
	f, err := s.Find(ctx, Query{Prefix: key.String()}, Place{}, Most{Payload: payload})
	i := Inspection{Now: f.Now}
	for _, t := range f.Timers {
		if t.Key == key {
			i.Timers = append(i.Timers, Inspected{Timer: t})
			i.Repeats = i.Repeats || t.Repeat != ""
		}
	}
	return i, err
}
