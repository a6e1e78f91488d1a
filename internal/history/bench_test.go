package history_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// BenchmarkSearch measures the messages per second of a search, in a stream that a server has just opened, and its cost
// for concurrent publishers. Messages have some 700 bytes.
func BenchmarkSearch(b *testing.B) {
	const total = 300_000
	server := testenv.NATS(b)
	names := keys.Names{}
	s := newStreams(b, server, names)
	for i := range total {
		switch {
		case i%1000 == 1:
			s.fire(fmt.Sprintf("pay:refund:poll:%d", i), 1)
		case i%50 == 2:
			s.fire(fmt.Sprintf("shop:cart:reminder:%d", i), 1)
		default:
			s.fire(fmt.Sprintf("shop:order:timeout:%d", i), 1)
		}
	}
	s.await(names.FiredStream(), total)
	for _, c := range []struct {
		name  string
		query history.Query
	}{
		{"every namespace", history.Query{Text: "no such order"}},
		{"98 percent", history.Query{Namespace: keys.Namespace{App: "shop", Module: "order", Type: "timeout"},
			Text: "no such order"}},
		{"2 percent", history.Query{Namespace: keys.Namespace{App: "shop", Module: "cart"}, Text: "no such order"}},
		{"1 in 1000", history.Query{Namespace: keys.Namespace{App: "pay"}, Text: "no such order"}},
	} {
		b.Run(strings.ReplaceAll(c.name, " ", "-"), func(b *testing.B) {
			server.Restart()
			testenv.Eventually(b, 10*time.Second, s.js.Conn().IsConnected, "a connection")
			stop, worst := make(chan struct{}), make(chan time.Duration)
			go publishMeanwhile(server.Conn(), stop, worst)
			r := history.New(s.js, names)
			looked, began := uint64(0), time.Now()
			for b.Loop() {
				for place := ""; ; {
					p, err := r.Search(b.Context(), c.query, place, 0)
					if err != nil {
						b.Fatal(err)
					}
					looked += p.Looked
					if place = p.Place; place == "" {
						break
					}
				}
			}
			b.ReportMetric(float64(looked)/time.Since(began).Seconds(), "messages/s")
			close(stop)
			b.ReportMetric(float64((<-worst).Microseconds())/1000, "worst-publish-ms")
		})
	}
}

// publishMeanwhile publishes a message each 2 ms and returns JetStream's time to store the slowest one.
func publishMeanwhile(nc *nats.Conn, stop chan struct{}, worst chan time.Duration) {
	slowest := time.Duration(0)
	for {
		select {
		case <-stop:
			worst <- slowest
			return
		case <-time.After(2 * time.Millisecond):
		}
		began := time.Now()
		if _, err := nc.Request("timers.fired.x.y.z", nil, 10*time.Second); err == nil {
			slowest = max(slowest, time.Since(began))
		}
	}
}
