package query_test

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// newSchedule returns the schedule of a Redis of its own.
func newSchedule(t *testing.T) (*schedule.Schedule, *redis.Client) {
	t.Helper()
	rdb := testenv.Redis(t).Client()
	s := schedule.New(rdb, schedule.DefaultMaxPayload)
	if _, err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, rdb
}

// Each repeating key is found once, also where more keys have one serial than a command reads: a script gives the keys
// that it renumbers one serial.
func TestRepeatingKeysOfOneSerial(t *testing.T) {
	t.Parallel()
	s, rdb := newSchedule(t)
	if err := rdb.FCall(t.Context(), "timer_set", []string{"shop:m:t:single"}, "p", "PX", 3600_000).Err(); err != nil {
		t.Fatal(err)
	}
	var entries []redis.Z
	for i := range 9000 {
		serial := float64(i + 1)
		switch {
		case i < 5: // to be planned
			serial = -serial
		case i >= 1900 && i < 2100: // over the end of a page
			serial = 1900
		case i >= 3000 && i < 8000:
			serial = 3000
		}
		entries = append(entries, redis.Z{Score: serial, Member: fmt.Sprint("shop:m:t:", i)})
	}
	if err := rdb.ZAdd(t.Context(), keys.Single.Repeat(), entries...).Err(); err != nil {
		t.Fatal(err)
	}
	found, searched := map[string]int{}, 0
	for at, first := (query.RepeatingPlace{}), true; first || at != (query.RepeatingPlace{}); first = false {
		page, next, looked, err := query.RepeatingFrom(t.Context(), s, keys.Namespace{}, at, 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range page {
			found[key.String()]++
		}
		at, searched = next, searched+looked
	}
	if len(found) != len(entries) || searched != len(entries) {
		t.Errorf("%d keys found by reading %d, want %d", len(found), searched, len(entries))
	}
}

// The rhythms of many keys are in the order of the keys, though a call stops after a few keys without a pending
// occurrence.
func TestRepetitionsOfManyKeys(t *testing.T) {
	t.Parallel()
	s, rdb := newSchedule(t)
	var names []string
	pipe := rdb.Pipeline()
	for i := range 250 {
		name := fmt.Sprint("shop:m:t:", i)
		names = append(names, name)
		if i%50 == 0 {
			pipe.FCall(t.Context(), "timer_set", []string{name}, "p", "PX", 3600_000)
		} else {
			pipe.FCall(t.Context(), "timer_repeat", []string{name}, name, "EVERY", 3600_000)
		}
		if i%10 == 7 {
			pipe.HDel(t.Context(), keys.Single.Data(), name)
		}
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	states, err := query.Repetitions(t.Context(), s, names)
	if err != nil || len(states) != len(names) {
		t.Fatal(len(states), err)
	}
	for i, state := range states {
		r := state.Repetition
		switch {
		case state.Err != nil:
			t.Errorf("%s: %v", names[i], state.Err)
		case i%50 == 0 && (r != nil || state.Due.IsZero()):
			t.Errorf("%s, a single timer: %+v", names[i], state)
		case i%10 == 7 && r != nil:
			t.Errorf("%s, without its record: %+v", names[i], r)
		case i%50 != 0 && i%10 != 7 && (r == nil || string(r.Payload) != names[i]):
			t.Errorf("%s: %+v", names[i], r)
		}
	}
}
