package schedule_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// walk finds all timers of a query, each time going on from the text of the place.
func walk(t testing.TB, s *schedule.Schedule, q query.Query, most query.Most) (timers []string, last query.Found) {
	t.Helper()
	var place query.Place
	for {
		found, err := query.Find(t.Context(), s, q, place, most)
		if err != nil {
			t.Fatal(err)
		}
		if len(found.Timers) > most.Timers || found.Full && len(found.Timers) != most.Timers ||
			found.Looked < last.Looked {
			t.Fatalf("found %+v after %+v with %+v", found, last, most)
		}
		for _, timer := range found.Timers {
			if !isMeant(q, timer) {
				t.Errorf("%+v is not meant by %+v", timer, q)
			}
			timers = append(timers, say(timer))
		}
		if last = found; found.Next.IsZero() {
			return timers, last
		}
		if place, err = query.ParsePlace(found.Next.String()); err != nil || place != found.Next ||
			strings.Trim(place.String(), urlSafe) != "" {
			t.Fatalf("place %q, %v", found.Next, err)
		}
	}
}

const urlSafe = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

func say(timer query.Timer) string {
	return fmt.Sprint(timer.Key, " ", timer.Due.UnixMilli(), " ", timer.State, " ", timer.Beside, " ", timer.Parked,
		" ", timer.Attempt)
}

// isMeant reports whether a query selects a timer, by the timer's fields.
func isMeant(q query.Query, timer query.Timer) bool {
	return q.Namespace.Match(timer.Key) && strings.HasPrefix(timer.Key.String(), q.Prefix) &&
		strings.Contains(timer.Key.ID, q.ID) &&
		(len(q.States) == 0 || slices.Contains(q.States, timer.State)) && !timer.Due.Before(q.From) &&
		(q.Before.IsZero() || timer.Due.Before(q.Before))
}

// listed returns the timers of a list that match a query.
func listed(t testing.TB, s *schedule.Schedule, q query.Query) (timers []string) {
	t.Helper()
	err := list(t, s, keys.Namespace{}, func(timer query.Timer) bool {
		if isMeant(q, timer) {
			timers = append(timers, say(timer))
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return timers
}

// compare walks a schedule in steps of all kinds, by queries of all kinds, and compares the finds with the list.
func compare(t *testing.T, s *schedule.Schedule, from, before time.Time, steps ...query.Most) {
	t.Helper()
	for _, q := range []query.Query{
		{},
		{Namespace: keys.Namespace{App: "a"}},
		{Prefix: "a:b:c:1"},
		{Prefix: "a:b:c:1", ID: "3"},
		{Namespace: keys.Namespace{Type: "c"}, ID: "7"},
		{States: []query.State{query.StatePending}},
		{States: []query.State{query.StateHeld}},
		{States: []query.State{query.StateOwed, query.StateFiring}},
		{From: from},
		{Before: before},
		{From: from, Before: before, Namespace: keys.Namespace{App: "a"}},
	} {
		want := listed(t, s, q)
		for _, most := range steps {
			got, last := walk(t, s, q, most)
			if !slices.Equal(got, want) {
				t.Fatalf("%+v in steps of %+v: found %d\n\t%s\nwant %d\n\t%s", q, most, len(got),
					strings.Join(got, "\n\t"), len(want), strings.Join(want, "\n\t"))
			}
			if last.Looked != last.Total || last.Total < int64(len(want)) {
				t.Errorf("%+v: looked at %d of %d", q, last.Looked, last.Total)
			}
		}
	}
}

// The pages together have the timers of a list: all kinds of timers, many of the same due time.
func TestFind(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("FCALL", "timer_set", 1, k, "newer", "PX", 3600_000)
	for i := range 20 {
		x.retry(fmt.Sprint(i), x.redisNow()+1800_000, 2+i%3, "again")
	}
	x.becomeDue("claimed:b:c:1", "claimed:b:c:2")
	x.claimFor(time.Hour)
	x.becomeDue("owed:b:c:1", "owed:b:c:2")
	x.observe(expired("owed:b:c:1"))
	x.hold("held")
	x.becomeDue("held:b:c:1", "held:b:c:2")
	x.observe(expired("held:b:c:1"))
	due := far()
	x.setMany("a", 40, due, 0)
	x.setMany("b", 60, due-30, 1)
	steps := []query.Most{{Timers: 1}, {Timers: 7}, {Timers: 1000}, {Timers: 3, Entries: 1}, {Timers: 50, Entries: 10},
		{Timers: 5, Time: 1}}
	compare(t, x.Schedule, time.UnixMilli(due-20), time.UnixMilli(due+1), steps...)
	x.claimFor(time.Hour) // holds, and claims owed timers
	x.becomeDue("held:b:c:3")
	x.claimFor(time.Hour)
	compare(t, x.Schedule, time.UnixMilli(due-1000), time.UnixMilli(due), steps...)
}

// In a cluster the same places hold for all servers.
func TestFindInACluster(t *testing.T) {
	t.Parallel()
	x := newClusterIndex(t)
	due := far()
	for i := range 150 {
		x.set(fmt.Sprintf("%s:b:c:%d", []string{"a", "b"}[i%2], i), "p", time.Hour)
	}
	for i := range 60 {
		key := fmt.Sprintf("a:{same}:c:%d", i)
		if err := x.rdb.FCall(t.Context(), "timer_set", []string{key}, "p", "PXAT", due).Err(); err != nil {
			t.Fatal(err)
		}
	}
	compare(t, x.Schedule, time.UnixMilli(due-100), time.UnixMilli(due), query.Most{Timers: 77},
		query.Most{Timers: 1000})
}

// Timers that come and go hide no other timer from a find, and bring none twice.
func TestFindWhileTimersComeAndGo(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	due := far()
	x.setMany("a", 2000, due, 0)
	var got []string
	var place query.Place
	for {
		found, err := query.Find(t.Context(), x.Schedule, query.Query{Namespace: keys.Namespace{App: "a"}}, place,
			query.Most{Timers: 90})
		if err != nil {
			t.Fatal(err)
		}
		for _, timer := range found.Timers {
			got = append(got, timer.Key.ID)
		}
		if place = found.Next; place.IsZero() {
			break
		}
		x.do("FCALL", "timer_cancel", 1, found.Timers[89].Key.String()) // the one that the place names
		x.do("FCALL", "timer_cancel", 1, found.Timers[0].Key.String())
		x.setMany(fmt.Sprintf("0%d", len(got)), 20, due, 0) // before it
	}
	if len(got) != 2000 || !slices.IsSorted(got) {
		t.Errorf("found %d, sorted %v", len(got), slices.IsSorted(got))
	}
}

// A find returns the requested part of a payload, and its full size.
func TestFindTellsOfPayloads(t *testing.T) {
	t.Parallel()
	x := newLargeIndex(t)
	x.do("FCALL", "timer_set", 1, "a:b:c:1", strings.Repeat("x", largePayload), "PXAT", far(), "LATE", 1000)
	x.do("FCALL", "timer_repeat", 1, "a:b:c:2", "a:b;c", "EVERY", 3600_000, "FROM", far()+1000)
	found, err := query.Find(t.Context(), x.Schedule, query.Query{}, query.Place{}, query.Most{Payload: 3})
	if err != nil || len(found.Timers) != 2 {
		t.Fatalf("%+v, %v", found, err)
	}
	one, two := found.Timers[0], found.Timers[1]
	if string(one.Payload) != "xxx" || one.Size != largePayload || one.Late.Most != time.Second {
		t.Errorf("%q of %d bytes, %v", one.Payload, one.Size, one.Late)
	}
	if string(two.Payload) != "a:b" || two.Size != 5 || two.Repeat != "every 1h0m0s" || two.Occurrence != 1 {
		t.Errorf("%+v", two)
	}
}

// BenchmarkFind tells how long a page takes among many timers, and the slowest of its commands, at the beginning, in
// the middle, and where nothing matches.
//
//	go test ./schedule -run '^$' -bench Find -benchtime 5x
func BenchmarkFind(b *testing.B) {
	const n, spread = 1_000_000, 10
	x := newLargeIndex(b)
	due := far()
	for first := 0; first < n; first += 1000 {
		pipe := x.rdb.Pipeline()
		for i := first; i < first+1000; i++ {
			key := fmt.Sprintf("shop:order:timeout:%07d", i)
			pipe.ZAdd(b.Context(), keys.Single.Due(), redis.Z{Score: float64(due + int64(i/spread)), Member: key})
			pipe.HSet(b.Context(), keys.Single.Data(), key, ":payload")
		}
		if _, err := pipe.Exec(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	middle, err := query.Find(b.Context(), x.Schedule, query.Query{From: time.UnixMilli(due + n/spread/2)},
		query.Place{}, query.Most{})
	if err != nil {
		b.Fatal(err)
	}
	for name, c := range map[string]struct {
		q    query.Query
		from query.Place
	}{
		"first page": {},
		"middle":     {from: middle.Next},
		"nothing":    {q: query.Query{Prefix: "pay:"}},
	} {
		b.Run(name, func(b *testing.B) {
			x.do("CONFIG", "SET", "slowlog-log-slower-than", "0", "slowlog-max-len", "10000")
			x.do("SLOWLOG", "RESET")
			looked := int64(0)
			for b.Loop() {
				found, err := query.Find(b.Context(), x.Schedule, c.q, c.from,
					query.Most{Payload: 200, Time: time.Minute})
				if err != nil {
					b.Fatal(err)
				}
				before := int64(0)
				if !c.from.IsZero() {
					before = n / 2
				}
				looked += found.Looked - before
			}
			longest, all := time.Duration(0), time.Duration(0)
			for _, slow := range x.rdb.SlowLogGet(b.Context(), -1).Val() {
				longest = max(longest, slow.Duration)
				all += slow.Duration
			}
			b.ReportMetric(float64(longest.Microseconds()), "longest-µs")
			b.ReportMetric(float64(all.Microseconds())/float64(b.N), "redis-µs/op")
			b.ReportMetric(float64(looked)/float64(b.N), "looked/op")
		})
	}
}
