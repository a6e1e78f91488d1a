package schedule_test

import (
	"errors"
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

// BenchmarkLongestStep measures the longest time for which a hostile tenant can make a script or function hold Redis:
// longest-µs is its slowest call in Redis's slow log.
//
//	go test ./schedule -run '^$' -bench LongestStep -benchtime 1x -count 5
func BenchmarkLongestStep(b *testing.B) {
	const crowd = 5000
	large := strings.Repeat("x", largePayload)
	key := func(i int) string { return fmt.Sprintf("a:b:c:%d", i) }
	hash := func(x *index, fields int, name, value string) {
		for i := range 100 {
			args := []any{"HSET", key(i)}
			for f := range fields {
				args = append(args, fmt.Sprint(name, f), value)
			}
			x.do(args...)
			x.do("PEXPIRE", key(i), 60_000)
			x.observe(touched(key(i)))
		}
	}
	claimAll := func(x *index) {
		for {
			firings := x.claimFor(lease).Firings
			if len(firings) == 0 {
				return
			}
			if err := x.Settle(b.Context(), schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
				b.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name string
		run  func(x *index)
	}{
		{"hash of 1000 fields", func(x *index) { hash(x, 1000, "name", "value") }},
		{"hash of 13000 fields", func(x *index) { hash(x, 13_000, "name", "value") }},
		{"hash of the largest size", func(x *index) { hash(x, 1000, "name", strings.Repeat("v", 240)) }},
		{"field name of 3 MB", func(x *index) { hash(x, 1, strings.Repeat("n", 3<<20), "value") }},
		{"hashes of control characters",
			func(x *index) { hash(x, 1, "name", strings.Repeat("\x01", largePayload-200)) }},
		{"attempts that are arrays", func(x *index) {
			x.do("FCALL", "timer_set", 1, k, `{"attempt":[`+strings.Repeat("[],", largePayload/3-10)+`[]]}`, "PX",
				60_000)
			x.do("FCALL_RO", "timer_get", 1, k)
		}},
		{"large payloads adopted", func(x *index) {
			var hints []schedule.Hint
			for i := range 128 {
				x.do("SET", key(i), large, "PX", 60_000)
				hints = append(hints, touched(key(i)))
			}
			x.observe(hints...)
		}},
		{"large payloads due at once", func(x *index) {
			due := x.redisNow() + 2000
			for i := range 300 {
				x.do("FCALL", "timer_set", 1, key(i), large, "PXAT", due)
			}
			x.awaitClock(due)
			claimAll(x)
		}},
		{"large payloads owed", func(x *index) {
			due := x.redisNow() + 2000
			var hints []schedule.Hint
			for i := range 300 {
				x.do("FCALL", "timer_set", 1, key(i), large, "PXAT", due)
				hints = append(hints, expired(key(i)))
			}
			x.awaitClock(due)
			x.observe(hints...)
			claimAll(x)
		}},
		{"large payloads listed", func(x *index) {
			for i := range 300 {
				x.do("FCALL", "timer_set", 1, key(i), large, "PX", 60_000)
			}
			if err := list(b, x.Schedule, keys.Namespace{}, func(query.Timer) bool { return true }); err != nil {
				b.Fatal(err)
			}
		}},
		{"retries beside one key", func(x *index) {
			x.do("FCALL", "timer_set", 1, k, "newer", "PX", 60_000)
			due := x.redisNow() + 3000
			parsed, _ := keys.Parse(k)
			for i := range crowd {
				_, _, _ = x.Retry(b.Context(),
					schedule.Retry{EventID: fmt.Sprint(i), Key: parsed, Due: schedule.Millis(due), Attempt: 2})
			}
			x.awaitClock(due)
			claimAll(x)
		}},
		{"large retries cancelled", func(x *index) {
			x.do("FCALL", "timer_set", 1, k, "newer", "PX", 60_000)
			due := schedule.Millis(x.redisNow() + 60_000)
			parsed, _ := keys.Parse(k)
			for i := range crowd {
				_, _, _ = x.Retry(b.Context(),
					schedule.Retry{EventID: fmt.Sprint(i), Key: parsed, Due: due, Attempt: 2, Payload: []byte(large)})
			}
			x.do("FCALL", "timer_cancel", 1, k)
		}},
		{"large owed timers cancelled, with large retries", func(x *index) {
			for range 300 {
				x.do("FCALL", "timer_set", 1, k, large, "PX", 1)
				x.awaitClock(x.due(k))
			}
			x.do("FCALL", "timer_set", 1, k, "newer", "PX", 60_000)
			due := schedule.Millis(x.redisNow() + 60_000)
			parsed, _ := keys.Parse(k)
			for i := range 150 {
				_, _, _ = x.Retry(b.Context(),
					schedule.Retry{EventID: fmt.Sprint(i), Key: parsed, Due: due, Attempt: 2, Payload: []byte(large)})
			}
			_, _ = x.rdb.FCall(b.Context(), "timer_cancel", []string{k}).Result()
		}},
		{"timers of a long key owed", func(x *index) {
			long := "a:b:c:" + strings.Repeat("x", 1018)
			for range crowd {
				x.do("FCALL", "timer_set", 1, long, "p", "PX", 1)
				x.awaitClock(x.due(long))
			}
			x.do("FCALL_RO", "timer_get", 1, long)
			x.claimFor(lease)
			x.do("FCALL_RO", "timer_get", 1, long)
			_, _ = x.rdb.FCall(b.Context(), "timer_cancel", []string{long}).Result()
		}},
		{"large timers of a key cancelled one by one", func(x *index) {
			due := x.redisNow() + 60_000
			x.do("FCALL", "timer_set", 1, k, "newer", "PXAT", due)
			parsed, _ := keys.Parse(k)
			for i := range crowd {
				_, _, _ = x.Retry(b.Context(), schedule.Retry{EventID: fmt.Sprint(i), Key: parsed,
					Due: schedule.Millis(due + int64(i)), Attempt: 2, Payload: []byte(large)})
			}
			x.do("SLOWLOG", "RESET") // not of the retries
			for i := range 200 {
				x.do("FCALL", "timer_cancel", 1, k, "UNTIL", due+int64(i))
			}
		}},
		{"large timers inspected and moved", func(x *index) {
			parsed, _ := keys.Parse(k)
			due := x.redisNow() + 60_000
			x.do("HSET", k, "f", strings.Repeat("v", largePayload-100))
			x.do("PEXPIREAT", k, due)
			x.observe(touched(k))
			for i := range 150 {
				_, _, _ = x.Retry(b.Context(), schedule.Retry{EventID: fmt.Sprint(i), Key: parsed,
					Due: schedule.Millis(due + int64(i)), Attempt: 2, Payload: []byte(large)})
			}
			x.do("SLOWLOG", "RESET") // not of the retries
			x.inspect(k)
			x.moves(schedule.Which{Key: parsed, Due: time.UnixMilli(due)}, far(), schedule.MoveDone)
			x.moves(schedule.Which{Key: parsed, Due: time.UnixMilli(far())}, now, schedule.MoveChanged)
			x.moves(x.inspect(k).Timers[0].Which(), now, schedule.MoveDone)
		}},
		{"large timers imported", func(x *index) {
			var timers []schedule.Imported
			for i := range crowd {
				parsed, _ := keys.Parse(longKey("a", i))
				due := far()
				if i%2 == 0 {
					due = 1000
				}
				payload := large[:largePayload/(1+i%16)]
				timers = append(timers,
					schedule.Imported{Key: parsed, Payload: []byte(payload), Exported: schedule.Exported{Due: due}})
			}
			x.imports(timers)
		}},
		{"timers imported beside one key", func(x *index) {
			x.do("FCALL", "timer_set", 1, k, "newer", "PX", 60_000)
			parsed, _ := keys.Parse(k)
			due := far()
			timers := make([]schedule.Imported, crowd)
			for i := range timers {
				attempt := i + 1
				timers[i] = schedule.Imported{Key: parsed,
					Exported: schedule.Exported{Due: due + int64(i), Attempt: &attempt, Beside: true}}
			}
			x.imports(timers)
		}},
		{"pages among long keys of one due time", func(x *index) {
			x.damaged = true // these timers have no records
			due := far()
			pipe := x.rdb.Pipeline()
			for i := range crowd {
				pipe.ZAdd(b.Context(), keys.Single.Due(), redis.Z{Score: float64(due), Member: longKey("a", i)})
			}
			if _, err := pipe.Exec(b.Context()); err != nil {
				b.Fatal(err)
			}
			for place := (query.Place{}); ; {
				found, err := query.Find(b.Context(), x.Schedule, query.Query{Prefix: "b"}, place,
					query.Most{Entries: 100})
				if err != nil {
					b.Fatal(err)
				}
				if place = found.Next; place.IsZero() {
					break
				}
			}
		}},
		{"minutes of a day counted", func(x *index) {
			for i := range crowd {
				x.do("FCALL", "timer_set", 1, key(i), "p", "PX", 60_000+i*17_000)
			}
			x.do("SLOWLOG", "RESET") // not of timer_set
			if _, err := query.ForecastAll(b.Context(), x.Schedule, 24*60); err != nil {
				b.Fatal(err)
			}
		}},
		{"audit with 1000 apps", func(x *index) {
			for i := range crowd {
				x.do("FCALL", "timer_set", 1, fmt.Sprintf("app%d:b:c:1", i), "p", "PX", 600_000)
			}
			x.auditApps(x.after())
			for i := range crowd {
				x.do("FCALL", "timer_cancel", 1, fmt.Sprintf("app%d:b:c:1", i))
			}
			x.auditApps(x.after())
			x.auditApps(x.after())
			if _, err := x.Apps(b.Context()); err != nil {
				b.Fatal(err)
			}
		}},
		{"repetitions settled", func(x *index) {
			from := x.redisNow() + 2000
			for i := range crowd {
				x.do("FCALL", "timer_repeat", 1, key(i), "p", "EVERY", 60_000, "FROM", from)
			}
			x.awaitClock(from)
			claimAll(x)
		}},
		{"large repetitions planned and settled", func(x *index) {
			from := x.redisNow() + 2000
			for i := range 300 {
				x.do("FCALL", "timer_repeat", 1, key(i), large, "EVERY", 60_000, "FROM", from)
				x.do("FCALL", "timer_repeat", 1, key(i)+"planned", large, "CRON", "@yearly")
			}
			x.awaitClock(from)
			claimAll(x)
			claimAll(x)
		}},
		{"expressions", func(x *index) {
			for range 100 {
				x.do("FCALL", "timer_repeat", 1, k, "p", "CRON", "0 0 29 2 "+strings.Repeat("0-6/3,", 40)+"5#5")
				_, _ = x.rdb.FCall(b.Context(), "timer_repeat", []string{k}, "p", "CRON",
					strings.Repeat("0,", 100)+"0 0 31 2,4,6,9,11 *").Result()
			}
		}},
		{"timers of 5000 types counted", func(x *index) {
			due := x.redisNow() + 5000
			for i := range crowd {
				x.do("FCALL", "timer_set", 1, fmt.Sprintf("a:b:%s%d:1", strings.Repeat("c", 120), i), "p", "PXAT", due)
				x.do("ZADD", keys.Single.Members(), due+600_000, fmt.Sprint("nobody", i))
			}
			x.counted("a,b,c,d,e,f,g,h")
			x.beat(schedule.Self{Instance: "a"})
			x.awaitClock(due)
			for range crowd / schedule.MaxClaim {
				x.claimFor(time.Minute)
			}
			x.counted("a,b,c,d,e,f,g,h")
			x.overview()
		}},
		{"long keys held and released at once", func(x *index) { x.resumeLong(crowd, schedule.ResumeNow) }},
		{"long keys held and released at a rate", func(x *index) { x.resumeLong(crowd, schedule.ResumeRate) }},
		{"long keys held and shifted", func(x *index) { x.resumeLong(crowd, schedule.ResumeShift) }},
		{"long keys held and made dead letters", func(x *index) { x.resumeLong(crowd, schedule.ResumeDead) }},
		{"retries due at once", func(x *index) {
			due := x.redisNow() - 1000
			parsed, _ := keys.Parse(k)
			for i := range crowd {
				_, _, _ = x.Retry(b.Context(),
					schedule.Retry{EventID: fmt.Sprint(i), Key: parsed, Due: schedule.Millis(due), Attempt: 2})
			}
			claimAll(x)
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				x := newLargeIndex(b)
				x.do("CONFIG", "SET", "slowlog-log-slower-than", "100", "slowlog-max-len", "10000")
				x.do("SLOWLOG", "RESET") // the server may have served another case
				c.run(x)
				longest := time.Duration(0)
				for _, slow := range x.rdb.SlowLogGet(b.Context(), -1).Val() {
					if command := strings.ToLower(slow.Args[0]); strings.HasPrefix(command, "eval") ||
						command == "fcall" || command == "fcall_ro" || command == "hmget" {
						longest = max(longest, slow.Duration)
					}
				}
				b.ReportMetric(float64(longest.Microseconds()), "longest-µs")
			}
		})
	}
}

// imports sets timers as exported ones. Some may be refused.
func (x *index) imports(timers []schedule.Imported) {
	x.t.Helper()
	const together = 512 // as timerd set --from sends them
	for part := range slices.Chunk(timers, together) {
		for i, err := range x.Import(x.t.Context(), part, largePayload) {
			if err != nil && !errors.Is(err, schedule.ErrTooManyRetries) {
				x.t.Fatalf("%s: %v", part[i].Key, err)
			}
		}
	}
}

// resumeLong resumes a namespace with n held timers of the longest keys, among as many of a namespace that stays held.
// It looks for the timers and counts them too, also the ones at which no claim has looked.
func (x *index) resumeLong(n int, kind schedule.ResumeKind) {
	x.damaged = true // these timers have no records
	x.t.Helper()
	ctx := x.t.Context()
	due := x.redisNow() - 1000
	for first := 0; first < n; first += 100 {
		pipe := x.rdb.Pipeline()
		for i := first; i < first+100; i++ {
			for _, app := range []string{"a", "b"} {
				ref := fmt.Sprintf("%d:2:%s", due, longKey(app, i))
				pipe.ZAdd(ctx, keys.Single.Firing(), redis.Z{Score: float64(1<<52 + due), Member: ref})
				pipe.HSet(ctx, keys.Single.FiringData(), ref, ":p")
				pipe.ZAdd(ctx, keys.Single.Owed(), redis.Z{Member: fmt.Sprintf("1024:%s:%d:2", longKey(app, i), due)})
			}
			pipe.ZAdd(ctx, keys.Single.Due(), redis.Z{Score: float64(due), Member: longKey("c", i)})
			ref := fmt.Sprintf("%d:2:%s", due, longKey("c", i))
			pipe.ZAdd(ctx, keys.Single.Firing(), redis.Z{Score: 0, Member: ref})
			pipe.ZAdd(ctx, keys.Single.Owed(), redis.Z{Member: fmt.Sprintf("1024:%s:%d:2", longKey("c", i), due)})
		}
		if _, err := pipe.Exec(ctx); err != nil {
			x.t.Fatal(err)
		}
	}
	x.hold("b")
	l := x.list()
	h := schedule.Hold{Namespace: namespace(x.t, "a"), Since: l.Now - 60_000,
		Resume: &schedule.Resume{Kind: kind, Rate: 1e6, At: l.Now}}
	if err := l.Put(ctx, h); err != nil {
		x.t.Fatal(err)
	}
	if _, err := x.LookHeld(ctx, h.Resume.At, h.Namespace); err != nil {
		x.t.Fatal(err)
	}
	x.overview()
	times := schedule.Draw{}
	if kind == schedule.ResumeRate {
		var err error
		if times, err = l.Draw(ctx, &h, n, time.Second); err != nil {
			x.t.Fatal(err)
		}
	}
	if released := x.release(l, &h, &times); released != n {
		x.t.Errorf("%d released, want %d", released, n)
	}
}

// longKey returns the key of an app's timer with the maximum number of bytes.
func longKey(app string, i int) string {
	key := fmt.Sprintf("%s:b:c:%d", app, i)
	return key + strings.Repeat("x", 1024-len(key))
}
