package reconciler

import (
	"slices"
	"testing"
	"time"
)

// BenchmarkSleepUntilClaim measures the lateness of the reconciler's wake-up for a claim, in µs at the median and the
// 99th percentile: by Go's timer until preciseFor before the claim and then by the precise timer, or by Go's timer
// alone. Each iteration is one sleep of 5 ms, with nothing else to do:
//
//	go test ./reconciler -run '^$' -bench SleepUntilClaim -benchtime 1000x -cpu 1,2
func BenchmarkSleepUntilClaim(b *testing.B) {
	const sleep = 5 * time.Millisecond
	precise, err := newPreciseTimer()
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = precise.close() }()
	for name, timer := range map[string]*preciseTimer{"precise": precise, "Go": nil} {
		b.Run(name, func(b *testing.B) {
			var late []time.Duration
			for b.Loop() {
				due := time.Now().Add(sleep)
				if timer == nil {
					<-time.After(sleep)
				} else {
					<-time.After(sleep - preciseFor)
					timer.sleep(time.Until(due))
				}
				late = append(late, time.Since(due))
			}
			slices.Sort(late)
			microseconds := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
			b.ReportMetric(microseconds(late[len(late)/2]), "µs-p50")
			b.ReportMetric(microseconds(late[len(late)*99/100]), "µs-p99")
			b.ReportMetric(0, "ns/op") // it is the sleep
		})
	}
}
