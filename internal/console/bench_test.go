package console_test

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/keys"
)

// BenchmarkPages measures each page of a console that has just been started, with few timers and with 20 million: a
// twentieth of them repeat, and one in a million is of another namespace. The larger one takes 9 GB and some minutes.
func BenchmarkPages(b *testing.B) {
	for _, pending := range []int{100_000, 20_000_000} {
		b.Run(fmt.Sprint(pending), func(b *testing.B) {
			w := newWorld(b)
			w.fill(pending)
			for _, path := range append(pages(), "/timers?q=shop:order", "/timers?q=pay:refund", "/timers?state=owed",
				"/repeating?q=pay:refund") {
				b.Run(path, func(b *testing.B) {
					worst := time.Duration(0)
					for b.Loop() {
						w.server.Close()
						w.start()
						began := time.Now()
						w.page(path)
						worst = max(worst, time.Since(began))
					}
					b.ReportMetric(worst.Seconds()*1000, "worst-ms")
				})
			}
		})
	}
}

// fill puts timers into the schedule, without their keys: they are due from in an hour on.
func (w *world) fill(pending int) {
	w.t.Helper()
	const step, rare, repeating, model = 10_000, 1_000_000, 20, "shop:order:timeout:model"
	ctx, rdb := w.t.Context(), w.redis.Client(func(o *redis.Options) {
		o.ReadTimeout, o.WriteTimeout = time.Minute, time.Minute // a busy machine takes long for 10,000 timers
	})
	if _, err := w.timers.Repeat(ctx, model, []byte(`{"order":42}`), client.Every(time.Hour)); err != nil {
		w.t.Fatal(err)
	}
	record, err := rdb.HGet(ctx, keys.Single.Data(), model).Result()
	if err != nil {
		w.t.Fatal(err)
	}
	serial := regexp.MustCompile(`;R=\d+`)
	begin := time.Now().Add(time.Hour).UnixMilli()
	for first := 0; first < pending; first += step {
		var due, repeat []redis.Z
		var data []any
		for i := first; i < first+step; i++ {
			key := fmt.Sprintf("shop:order:timeout:%012d", i)
			if i%rare == rare-1 {
				key = fmt.Sprintf("pay:refund:poll:%d", i)
			}
			due = append(due, redis.Z{Score: float64(begin + int64(i)), Member: key})
			if i%repeating == 0 {
				repeat = append(repeat, redis.Z{Score: float64(i + 1), Member: key})
				data = append(data, key, serial.ReplaceAllString(record, fmt.Sprint(";R=", i+1)))
			} else {
				data = append(data, key, `:{"order":42,"customer":"c-7731","total":"49.90"}`)
			}
		}
		pipe := rdb.Pipeline()
		pipe.ZAdd(ctx, keys.Single.Due(), due...)
		pipe.HSet(ctx, keys.Single.Data(), data...)
		pipe.ZAdd(ctx, keys.Single.Repeat(), repeat...)
		if _, err := pipe.Exec(ctx); err != nil {
			w.t.Fatal(err)
		}
	}
}
