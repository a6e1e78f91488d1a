package listener

import (
	"fmt"
	"testing"
	"time"

	"github.com/timerd-io/timerd/schedule"
)

// BenchmarkHints takes 100 hints in and out again, of timers that are set, run out and are claimed.
func BenchmarkHints(b *testing.B) {
	const batch = 100
	names := make([]string, batch)
	claims := make([][]byte, batch)
	for i := range names {
		names[i] = fmt.Sprintf("shop:order:cancel:%d", i)
		claims[i] = fmt.Appendf(nil, "%d:%s", len(names[i]), names[i])
	}
	now := time.Now()
	b.Run("touched", func(b *testing.B) {
		buf := newBuffer()
		b.ReportAllocs()
		for b.Loop() {
			for _, key := range names {
				buf.hear(schedule.Hint{Kind: schedule.Touched, Key: key}, now)
				buf.hear(schedule.Hint{Kind: schedule.Touched, Key: key}, now)
			}
			buf.caughtUp()
			if hints, _ := buf.collect(); len(hints) != batch {
				b.Fatal(len(hints))
			}
		}
	})
	b.Run("set by timer_set", func(b *testing.B) {
		buf := newBuffer()
		b.ReportAllocs()
		for b.Loop() {
			for _, key := range names {
				buf.hear(schedule.Hint{Kind: schedule.Touched, Key: key}, now)
				buf.hear(schedule.Hint{Kind: schedule.Touched, Key: key}, now)
				buf.retract(key)
			}
		}
	})
	b.Run("expired and claimed", func(b *testing.B) {
		buf := newBuffer()
		buf.busy = func() bool { return true }
		b.ReportAllocs()
		for b.Loop() {
			for _, key := range names {
				buf.hear(schedule.Hint{Kind: schedule.Expired, Key: key}, now)
			}
			buf.caughtUp()
			buf.collect()
			for _, claimed := range claims {
				buf.explain(claimed)
			}
		}
	})
	b.Run("awaiting the claim", func(b *testing.B) {
		buf := newBuffer()
		buf.busy = func() bool { return true }
		b.ReportAllocs()
		for b.Loop() {
			for _, key := range names {
				buf.hear(schedule.Hint{Kind: schedule.Expired, Key: key}, now)
			}
			buf.ask(coalescing)
			var hints []schedule.Hint
			for _, h := range buf.in[urgent].all() {
				hints = append(hints, h.Hint)
			}
			buf.in[urgent].clear()
			buf.await(hints, now)
			for _, claimed := range claims {
				buf.explain(claimed)
			}
		}
	})
}
