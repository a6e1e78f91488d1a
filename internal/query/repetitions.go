package query

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Repetition is the rhythm of a key.
type Repetition struct {
	Text       string    // as in its events: "every 5m0s"
	Occurrence int64     // the number of the pending or present one
	From       time.Time // as in [cron.Repetition]
	Until      time.Time // the last possible due time; the zero Time: no end
	Times      int64     // occurrences in all; 0: no end
	CatchUp    time.Duration
	Late       policy.Limit
	Guards     policy.Guards
	Payload    []byte // nil if no occurrence is left
}

// KeyState is the state of a key in the index.
type KeyState struct {
	Repetition *Repetition // nil if the key does not repeat
	Due        time.Time   // of a single timer, pending or due and unclaimed; the zero Time without one
	Err        error       // ErrTooManyFirings if the state is unknown for now
}

// ErrTooManyFirings means that too many timers are owed or firing to find a key's occurrence among them. It is found
// once some of them are settled.
var ErrTooManyFirings = errors.New(
	"too many timers are owed or firing to find the repetition of this key now: try again")

// repetitionsChunk limits the keys of one round trip. Redis runs the steps of one round trip without a break, and a key
// with a crowd of firings, or with payloads of the largest size, takes 2 to 3 ms.
const repetitionsChunk = 4

// Repetitions returns the rhythm of each of the keys, in their order, whether its occurrence is pending, held or on its
// way. Each rhythm is read in one step, but not all of them together. An unknown rhythm is not an error: its KeyState
// has Err.
func Repetitions(ctx context.Context, s *schedule.Schedule, names []string) ([]KeyState, error) {
	states := make([]KeyState, 0, len(names))
	for some := range slices.Chunk(names, repetitionsChunk) {
		calls := make([]schedule.Call, len(some))
		for i, name := range some {
			calls[i] = schedule.Call{Partition: s.Partition(name), Args: []any{name}}
		}
		for i, reply := range s.Run(ctx, s.Script(lua, "repetitions"), calls) {
			state, err := keyState(reply)
			if err != nil {
				return nil, fmt.Errorf("schedule: read the repetition of %s: %w", keys.Abbreviate(some[i]), err)
			}
			states = append(states, state)
		}
	}
	return states, nil
}

// keyState reads one key's reply.
func keyState(reply *redis.Cmd) (KeyState, error) {
	found, err := schedule.ReadReply(reply, 1, 0)
	if err != nil {
		return KeyState{}, err
	}
	switch found := found[0].(type) {
	case string:
		return repetitionOf(found)
	case int64:
		if found < 0 {
			return KeyState{Err: ErrTooManyFirings}, nil
		}
		return KeyState{Due: schedule.Millis(found).Time()}, nil
	}
	return KeyState{}, nil
}

// repetitionOf reads the record of an occurrence.
func repetitionOf(text string) (KeyState, error) {
	r, ok := schedule.ParseRecord(text)
	if !ok || !r.Occurrence.Repeats() {
		return KeyState{}, errors.New("unexpected reply: not an occurrence's record")
	}
	o, rule := r.Occurrence, r.Occurrence.Rule()
	found := &Repetition{
		Text: o.Repeat, Occurrence: o.Number, From: rule.From, Until: rule.Until, Times: rule.Times,
		CatchUp: rule.CatchUp, Late: r.Late, Guards: r.Guards,
	}
	if r.Status == schedule.PayloadPresent {
		found.Payload = []byte(r.Payload)
	}
	return KeyState{Repetition: found}, nil
}

// repeatingPage is about the number of repeating keys that one command reads.
const repeatingPage = 500

// Repeating calls yield for a namespace's repeating keys, some at a time and in no order, until it returns false. A key
// may come twice. A key that starts or stops repeating meanwhile may be left out. If slots were moving, their keys are
// left out, and the final error wraps a *MovingError.
func Repeating(ctx context.Context, s *schedule.Schedule, n keys.Namespace, yield func([]keys.Key) bool) error {
	return repeatingPages(ctx, s, n, RepeatingPlace{}, func(page repeatingKeys, _ RepeatingPlace) bool {
		return len(page.keys) == 0 || yield(page.keys)
	})
}

// RepeatingPlace is a place in a search for repeating keys. Its zero value is the beginning as a place to search from,
// and the end as the place after a search.
type RepeatingPlace struct {
	Partition keys.Partition
	Cursor    uint64
}

// RepeatingFrom returns a namespace's repeating keys from a place on, in no order. It stops after about most repeating
// keys of any namespace. It returns the next place, and the number of keys searched. Missing and double keys, and
// moving slots, are as in [Repeating].
func RepeatingFrom(ctx context.Context, s *schedule.Schedule, n keys.Namespace, from RepeatingPlace,
	most int) (found []keys.Key, next RepeatingPlace, looked int, err error) {
	err = repeatingPages(ctx, s, n, from, func(page repeatingKeys, at RepeatingPlace) bool {
		found, looked, next = append(found, page.keys...), looked+page.looked, at
		return looked < most
	})
	if _, moving := errors.AsType[*MovingError](err); err != nil && !moving {
		return nil, from, 0, err
	}
	return found, next, looked, err
}

// repeatingPages calls yield with the keys of one command after the other, and the place behind them, until it returns
// false.
func repeatingPages(ctx context.Context, s *schedule.Schedule, n keys.Namespace, from RepeatingPlace,
	yield func(repeatingKeys, RepeatingPlace) bool) error {
	partitions, moving, err := withTimers(ctx, s)
	if err != nil {
		return err
	}
	var left error
	if moving > 0 {
		left = fmt.Errorf("schedule: look for repetitions: %w", &MovingError{moving})
	}
	for i, p := range partitions {
		at := RepeatingPlace{Partition: p}
		switch {
		case p < from.Partition:
			continue
		case p == from.Partition:
			at = from
		}
		for ended := false; !ended; {
			page, cursor, err := readRepeating(ctx, s, p, at.Cursor, n)
			if err != nil {
				return err
			}
			at.Cursor = cursor
			if ended = cursor == 0; ended {
				at = RepeatingPlace{}
				if i+1 < len(partitions) {
					at.Partition = partitions[i+1]
				}
			}
			if !yield(page, at) {
				return left
			}
		}
	}
	return left
}

// withTimers returns the partitions with something to claim, now or later, in their order, and the number left out
// because their slots are moving.
func withTimers(ctx context.Context, s *schedule.Schedule) (partitions []keys.Partition, moving int, err error) {
	masters, err := s.Masters(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("schedule: look for repetitions: %w", err)
	}
	for _, m := range masters {
		found, err := s.ScanMaster(ctx, m, schedule.Forever, schedule.Forever)
		if err != nil {
			return nil, 0, fmt.Errorf("schedule: look for repetitions: %w", err)
		}
		moving += len(found.Moving)
		for _, h := range found.Heads { // a repeating key always has something to claim
			partitions = append(partitions, h.Partition)
		}
	}
	slices.Sort(partitions)
	if moving > 0 {
		s.Reload(ctx) // the slots may have moved by now
	}
	return partitions, moving, nil
}

// repeatingKeys is the result of one command.
type repeatingKeys struct {
	keys   []keys.Key // of a namespace
	looked int        // of any
}

// readRepeating reads some repeating keys of a partition, and returns the next cursor: 0 at the end.
func readRepeating(ctx context.Context, s *schedule.Schedule, p keys.Partition, cursor uint64,
	n keys.Namespace) (repeatingKeys, uint64, error) {
	page, next, err := s.Client().ZScan(ctx, p.Repeat(), cursor, "", repeatingPage).Result()
	if err != nil {
		return repeatingKeys{}, 0, fmt.Errorf("schedule: look for repetitions: %w", err)
	}
	found := repeatingKeys{looked: len(page) / 2}
	for i := 0; i < len(page); i += 2 { // each name is followed by its score
		if key, err := keys.Parse(page[i]); err == nil && n.Match(key) {
			found.keys = append(found.keys, key)
		}
	}
	return found, next, nil
}
