package query

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
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

const (
	// repetitionsCalls limits the calls of one round trip: Redis runs them without a break.
	repetitionsCalls = 4
	// repetitionsKeys limits the keys of one call: some 0.5 ms.
	repetitionsKeys = 100
	// repetitionsSearches limits the keys of one round trip that are looked for among the firings. With a crowd of
	// firings, or payloads of the largest size, one takes 2 to 3 ms.
	repetitionsSearches = 4
)

// Repetitions returns the rhythm of each of the keys, in their order, whether its occurrence is pending, held or on its
// way. Each rhythm is read in one step, but not all of them together. An unknown rhythm is not an error: its KeyState
// has Err.
func Repetitions(ctx context.Context, s *schedule.Schedule, names []string) ([]KeyState, error) {
	states := make([]KeyState, len(names))
	unread := map[keys.Partition][]int{} // indices of names
	var partitions []keys.Partition
	for i, name := range names {
		p := s.Partition(name)
		if unread[p] == nil {
			partitions = append(partitions, p)
		}
		unread[p] = append(unread[p], i)
	}
	for len(partitions) > 0 {
		some := partitions[:min(len(partitions), repetitionsCalls)]
		calls := make([]schedule.Call, len(some))
		for i, p := range some {
			calls[i] = schedule.Call{Partition: p, Args: []any{max(1, repetitionsSearches/len(some))}}
			for _, at := range unread[p][:min(len(unread[p]), repetitionsKeys)] {
				calls[i].Args = append(calls[i].Args, names[at])
			}
		}
		for i, reply := range s.Run(ctx, s.Script(lua, "repetitions"), calls) {
			p := some[i]
			found, err := keyStates(reply, len(calls[i].Args)-1)
			if err != nil {
				return nil, fmt.Errorf("schedule: read the repetition of %s: %w",
					keys.Abbreviate(names[unread[p][len(found)]]), err)
			}
			for j, state := range found {
				states[unread[p][j]] = state
			}
			unread[p] = unread[p][len(found):]
		}
		partitions = slices.DeleteFunc(partitions, func(p keys.Partition) bool { return len(unread[p]) == 0 })
	}
	return states, nil
}

// keyStates reads the reply of one call: of its first keys, at least one and at most so many. If one cannot be read, it
// returns those before it, and the error.
func keyStates(reply *redis.Cmd, most int) (states []KeyState, err error) {
	found, err := schedule.ReadReply(reply, 1, 1)
	if err == nil && len(found) > most {
		err = fmt.Errorf("unexpected reply of %d elements", len(found))
	}
	if err != nil {
		return nil, err
	}
	for _, said := range found {
		var state KeyState
		switch said := said.(type) {
		case string:
			state, err = repetitionOf(said)
		case int64:
			if state.Due = schedule.Millis(said).Time(); said < 0 {
				state = KeyState{Err: ErrTooManyFirings}
			}
		}
		if err != nil {
			return states, err
		}
		states = append(states, state)
	}
	return states, nil
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

// repeatingPage limits the repeating keys that one command reads: some 0.2 ms.
const repeatingPage = 2000

// Repeating calls yield for a namespace's repeating keys, some at a time, until it returns false: of each partition
// first the keys that have not fired for longest. A key that fires meanwhile may come twice. A key that stops repeating
// meanwhile, or whose next occurrence is to be planned anew, may be left out. If slots were moving, their keys are left
// out, and the final error wraps a *MovingError.
func Repeating(ctx context.Context, s *schedule.Schedule, n keys.Namespace, yield func([]keys.Key) bool) error {
	return repeatingPages(ctx, s, n, RepeatingPlace{}, func(page repeatingKeys, _ RepeatingPlace) bool {
		return len(page.keys) == 0 || yield(page.keys)
	})
}

// RepeatingPlace is a place in a search for repeating keys. Its zero value is the beginning as a place to search from,
// and the end as the place after a search.
type RepeatingPlace struct {
	Partition keys.Partition
	Serial    int64 // of the first key to read; 0: the partition's first key
}

// RepeatingFrom returns a namespace's repeating keys from a place on. It reads at most so many repeating keys of any
// namespace, or one page. It returns the next place, and the number of keys searched. Order, missing and double keys,
// and moving slots, are as in [Repeating].
func RepeatingFrom(ctx context.Context, s *schedule.Schedule, n keys.Namespace, from RepeatingPlace,
	most int) (found []keys.Key, next RepeatingPlace, looked int, err error) {
	err = repeatingPages(ctx, s, n, from, func(page repeatingKeys, at RepeatingPlace) bool {
		found, looked, next = append(found, page.keys...), looked+page.looked, at
		return looked+repeatingPage <= most
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
			var page repeatingKeys
			if page, at, ended, err = readRepeating(ctx, s, at, n); err != nil {
				return err
			}
			if ended {
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

// readRepeating reads some repeating keys of a partition from a place on, by serial. It returns the place behind them,
// and whether these were the last. A range costs Redis a twentieth of a ZSCAN.
func readRepeating(ctx context.Context, s *schedule.Schedule, at RepeatingPlace,
	n keys.Namespace) (found repeatingKeys, next RepeatingPlace, ended bool, err error) {
	bounds := redis.ZRangeBy{Min: "-inf", Max: "+inf", Count: repeatingPage}
	if at.Serial != 0 {
		bounds.Min = strconv.FormatInt(at.Serial, 10)
	}
	var page []redis.Z
	for len(page) == 0 && !ended {
		if page, err = s.Client().ZRangeByScoreWithScores(ctx, at.Partition.Repeat(), &bounds).Result(); err != nil {
			return found, at, false, fmt.Errorf("schedule: look for repetitions: %w", err)
		}
		if ended = int64(len(page)) < bounds.Count; ended {
			break
		}
		// More keys may have the last serial: all of them belong to the next page. If all have it, read a larger one.
		last := page[len(page)-1].Score
		page = page[:slices.IndexFunc(page, func(z redis.Z) bool { return z.Score == last })]
		next = RepeatingPlace{at.Partition, int64(last)}
		bounds.Count *= 2
	}
	found.looked = len(page)
	for _, z := range page {
		name, _ := z.Member.(string)
		if key, err := keys.Parse(name); err == nil && n.Match(key) {
			found.keys = append(found.keys, key)
		}
	}
	return found, next, ended, nil
}
