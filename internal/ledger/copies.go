package ledger

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/schedule"
)

// mostCopies limits the hourly copies, to 30 days.
const mostCopies = 30 * 24

// Copy is the account at some time. In JSON it is a list of numbers, so that all copies fit into one message.
type Copy struct {
	At      time.Time // by the clock of NATS
	Account schedule.Account
}

// counts returns pointers to an account's counts of timers that have entered and left.
func counts(a *schedule.Account) []*int64 {
	return []*int64{
		&a.In.Set, &a.In.Adopted, &a.In.Retried, &a.In.Repeated,
		&a.Out.Fired, &a.Out.Cancelled, &a.Out.Replaced, &a.Out.Dead, &a.Out.Dropped, &a.Out.Guarded, &a.Out.Skipped,
	}
}

// numbers returns pointers to the numbers of an account, in the order of a stored copy. Add new ones at the end.
func numbers(a *schedule.Account) []*int64 {
	return append(counts(a), &a.Opening, &a.There.Pending, &a.There.Held, &a.There.Owed, &a.There.Firing,
		&a.There.Parked, &a.There.Contested, &a.Difference, &a.Earlier)
}

// MarshalJSON writes the times in unix ms, and then the numbers.
func (c Copy) MarshalJSON() ([]byte, error) {
	list := []int64{c.At.UnixMilli(), c.Account.Since.UnixMilli()}
	for _, n := range numbers(&c.Account) {
		list = append(list, *n)
	}
	return json.Marshal(list)
}

// UnmarshalJSON reads what MarshalJSON has written, or another version of timerd.
func (c *Copy) UnmarshalJSON(data []byte) error {
	var list []int64
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	if len(list) < 2 {
		return fmt.Errorf("a copy of the account with %d numbers", len(list))
	}
	*c = Copy{At: time.UnixMilli(list[0]).UTC()}
	c.Account.Since = time.UnixMilli(list[1]).UTC()
	for i, n := range numbers(&c.Account) {
		if i+2 < len(list) {
			*n = list[i+2]
		}
	}
	return nil
}

// copy keeps a copy of the account, unless this hour has one.
func (k Keeper) copy(ctx context.Context, r reading) error {
	at := r.stream.TimeStamp.UTC()
	return streams.ChangeState(ctx, k.JetStream, k.Streams, stateCopies, func(copies *[]Copy) bool {
		if n := len(*copies); n > 0 && (*copies)[n-1].At.Truncate(time.Hour).Equal(at.Truncate(time.Hour)) {
			return false
		}
		*copies = append(*copies, Copy{at, r.account})
		*copies = slices.Clone((*copies)[max(len(*copies)-mostCopies, 0):])
		return true
	})
}

// Copies returns the hourly copies of the last 30 days, oldest first.
func Copies(ctx context.Context, js jetstream.JetStream, s streams.Config) ([]Copy, error) {
	copies, err := streams.ReadState[[]Copy](ctx, js, s, stateCopies)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	return copies, err
}

// Nearest returns the copy nearest to a time. There must be one.
func Nearest(copies []Copy, at time.Time) Copy {
	return slices.MinFunc(copies, func(a, b Copy) int { return cmp.Compare(a.At.Sub(at).Abs(), b.At.Sub(at).Abs()) })
}

// Between returns the account from one copy to a later one: its opening are the timers of the first one, and
// those of partitions that have begun later. It returns false if an account began anew in between, as after FLUSHDB.
func Between(from, to Copy) (schedule.Account, bool) {
	a, b := from.Account, to.Account
	between := schedule.Account{
		Since: from.At, Opening: a.There.Sum() + b.Opening - a.Opening, There: b.There,
		Difference: b.Difference - a.Difference, Differences: []schedule.AccountDifference{},
	}
	was, is := counts(&a), counts(&b)
	for i, n := range counts(&between) {
		if *n = *is[i] - *was[i]; *n < 0 {
			return schedule.Account{}, false
		}
	}
	return between, a.Since.Equal(b.Since) && a.Earlier == b.Earlier
}
