package schedule_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// repeating returns the state of k by the index.
func (x *index) repeating() query.KeyState {
	x.t.Helper()
	states, err := query.Repetitions(x.t.Context(), x.Schedule, []string{k})
	if err != nil {
		x.t.Fatal(err)
	}
	return states[0]
}

// repetitionIs compares the repetition of k with "text, occurrence, payload".
func (x *index) repetitionIs(when, want string) {
	x.t.Helper()
	r := x.repeating().Repetition
	if r == nil {
		x.t.Fatalf("%s: it does not repeat, want %s", when, want)
	}
	if got := fmt.Sprintf("%s, %d, %s", r.Text, r.Occurrence, r.Payload); got != want {
		x.t.Errorf("%s: %s, want %s", when, got, want)
	}
}

// A repetition is known in each state of its occurrence.
func TestRepetitionsAreKnownInEachState(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	if s := x.repeating(); s != (query.KeyState{}) {
		t.Errorf("without a timer: %+v", s)
	}
	due := x.do("FCALL", "timer_set", 1, k, "p", "PX", 60000).(int64)
	if s := x.repeating(); s.Repetition != nil || s.Due.UnixMilli() != due {
		t.Errorf("a single timer that is due at %d: %+v", due, s)
	}
	x.do("FCALL", "timer_repeat", 1, k, "p", "CRON", "0 0 1 1 *", "TZ", "Asia/Kathmandu")
	x.repetitionIs("before it is planned", "cron 0 0 1 1 * Asia/Kathmandu, 1, p")
	x.claims()
	x.repetitionIs("planned", "cron 0 0 1 1 * Asia/Kathmandu, 1, p")

	x.awaitClock(x.repeats("a:;R=5", "EVERY", 100))
	x.repetitionIs("due", "every 100ms, 1, a:;R=5")
	older := x.occurs("every 100ms 1 a:;R=5")
	x.repetitionIs("firing", "every 100ms, 1, a:;R=5")
	x.do("SET", k, "new", "PX", 60000)
	x.observe(touched(k))
	x.repetitionIs("firing, and the key set again", "every 100ms, 1, a:;R=5")
	x.do("DEL", k)
	x.do("FCALL", "timer_set", 1, k, "p", "PX", 60000)
	if s := x.repeating(); s.Repetition != nil {
		t.Errorf("firing, and a single timer in its place: %+v", s.Repetition)
	}
	x.awaitClock(x.repeats("newer", "EVERY", 200))
	x.repetitionIs("beside the firing of another one", "every 200ms, 1, newer")
	newer := x.occurs("every 200ms 1 newer")
	x.repetitionIs("firing beside it", "every 200ms, 1, newer")
	x.settle(older)
	x.settle(newer)
	x.repetitionIs("settled", "every 200ms, 2, newer")

	x.hold("*")
	index, _ := x.pendingAt()
	x.awaitClock(index)
	x.claims()
	x.repetitionIs("held", "every 200ms, 2, newer")
	x.do("FCALL", "timer_cancel", 1, k)
	if s := x.repeating(); s.Repetition != nil {
		t.Errorf("cancelled: %+v", s.Repetition)
	}
}

// All details of a repetition are read.
func TestRepetitionsSayEverything(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	from := x.redisNow() - 1000
	until := from + 90_000_000
	x.repeats("p", "EVERY", 90_000, "FROM", from, "UNTIL", until, "TIMES", 7, "CATCHUP", 5000, "LATE", 300, "DROP")
	want := query.Repetition{
		Text: "every 1m30s", Occurrence: 1, From: time.UnixMilli(from).UTC(), Until: time.UnixMilli(until).UTC(),
		Times:   7,
		CatchUp: 5 * time.Second, Late: policy.Limit{Given: true, Most: 300 * time.Millisecond, Drop: true},
		Payload: []byte("p"),
	}
	if got := x.repeating().Repetition; fmt.Sprintf("%+v", *got) != fmt.Sprintf("%+v", want) {
		t.Errorf("%+v\nwant %+v", *got, want)
	}
}

// If too many others are firing to find an occurrence, the error says so, and not that it does not repeat.
func TestRepetitionAmongManyFirings(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.damaged = true
	x.awaitClock(x.repeats("p", "EVERY", 100))
	x.occurs("every 100ms 1 p")
	var others []redis.Z
	for i := range 1000 {
		others = append(others, redis.Z{Score: 1, Member: fmt.Sprintf("1::other:m:t:%d", i)})
	}
	if err := x.rdb.ZAdd(t.Context(), keys.Single.Firing(), others...).Err(); err != nil {
		t.Fatal(err)
	}
	if states, err := query.Repetitions(t.Context(), x.Schedule, []string{k}); err != nil ||
		!errors.Is(states[0].Err, query.ErrTooManyFirings) {
		t.Errorf("%+v, %v", states, err)
	}
}

// The repetition of a key is found among its large owed firings by reading the last of them; if that is too much to
// read, the error says so.
func TestRepetitionAmongLargeFirings(t *testing.T) {
	t.Parallel()
	x := newLargeIndex(t)
	x.seeded = true
	x.hold("*")
	x.awaitClock(x.repeats("p", "EVERY", 60_000, "FROM", x.redisNow()+100))
	x.claims()
	x.repetitionIs("held", "every 1m0s, 1, p")
	reads := func() int {
		t.Helper()
		stats, err := x.rdb.Info(t.Context(), "commandstats").Result()
		if err != nil {
			t.Fatal(err)
		}
		_, after, _ := strings.Cut(stats, "cmdstat_hget:calls=")
		text, _, _ := strings.Cut(after, ",")
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("%v in %s", err, stats)
		}
		return n
	}
	firings := func(due int64) {
		t.Helper()
		for i := range int64(100) {
			ref := fmt.Sprintf("%d:2:%s", due+i, k)
			x.do("ZADD", keys.Single.Firing(), 1<<52+due+i, ref)
			x.do("HSET", keys.Single.FiringData(), ref, ":"+strings.Repeat("x", largePayload))
			x.do("ZADD", keys.Single.Owed(), 0, fmt.Sprintf("%d:%s:%d:2", len(k), k, due+i))
		}
	}
	now := x.redisNow()
	firings(now - 3600_000)
	before := reads()
	x.repetitionIs("after the others", "every 1m0s, 1, p")
	if n := reads() - before; n > 10 {
		t.Errorf("%d records were read", n)
	}
	firings(now + 1000)
	before = reads()
	if states, err := query.Repetitions(t.Context(), x.Schedule, []string{k}); err != nil ||
		!errors.Is(states[0].Err, query.ErrTooManyFirings) {
		t.Errorf("before the others: %+v, %v", states, err)
	}
	if n := reads() - before; n > 10 {
		t.Errorf("%d records were read", n)
	}
}

// The repeating keys of a namespace are found among single timers and other namespaces' keys.
func TestRepeatingKeys(t *testing.T) {
	t.Parallel()
	testRepeatingKeys(t, servers.client(t))
}

// In a cluster too.
func TestRepeatingKeysOfACluster(t *testing.T) {
	t.Parallel()
	testRepeatingKeys(t, testenv.Cluster(t, 3, false).Client())
}

func testRepeatingKeys(t *testing.T, rdb redis.UniversalClient) {
	t.Helper()
	s := schedule.New(rdb, 1000)
	load(t, s)
	const n = 700 // over one page
	var calls []func(pipe redis.Pipeliner)
	set := func(function, key string, args []any) {
		calls = append(calls, func(pipe redis.Pipeliner) { pipe.FCall(t.Context(), function, []string{key}, args...) })
	}
	want := map[string]bool{}
	for i := range n {
		key := fmt.Sprintf("shop:m:t:%d", i)
		want[key] = true
		call := []any{"p", "EVERY", 60_000}
		if i%7 == 0 {
			call = []any{"p", "CRON", "@daily"}
		}
		set("timer_repeat", key, call)
	}
	set("timer_set", "shop:m:t:single", []any{"p", "PX", 60_000})
	set("timer_repeat", "pay:m:t:1", []any{"p", "EVERY", 60_000})
	testenv.Eventually(t, time.Minute, func() error {
		_, err := rdb.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
			for _, do := range calls {
				do(pipe)
			}
			return nil
		})
		return err
	}, "them to be set")
	var names []string
	got := map[string]bool{}
	err := query.Repeating(t.Context(), s, namespace(t, "shop"), func(some []keys.Key) bool {
		for _, key := range some {
			if name := key.String(); !got[name] {
				got[name] = true
				names = append(names, name)
			}
		}
		return true
	})
	if err != nil || len(got) != n || slices.ContainsFunc(names, func(name string) bool { return !want[name] }) {
		t.Errorf("%d were found, want %d; %v", len(got), n, err)
	}
	states, err := query.Repetitions(t.Context(), s, names)
	if err != nil || len(states) != len(names) {
		t.Fatal(len(states), err)
	}
	for i, state := range states {
		if state.Repetition == nil {
			t.Errorf("%s does not repeat", names[i])
		}
	}
	pages := 0
	if err := query.Repeating(t.Context(), s, keys.Namespace{},
		func([]keys.Key) bool { pages++; return false }); err != nil || pages != 1 {
		t.Errorf("it went on to %d pages, %v", pages, err)
	}
}
