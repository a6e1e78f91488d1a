package deliver_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/keys"
)

// benchReceiver answers 204 and signals the nth call.
func benchReceiver(b *testing.B, n int) (url string, done <-chan struct{}) {
	b.Helper()
	var calls atomic.Int64
	all := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusNoContent)
		if calls.Add(1) == int64(n) {
			close(all)
		}
	}))
	b.Cleanup(server.Close)
	return server.URL, all
}

// reportCPU reports the CPU time of the process, until the returned function is called, for each call.
func reportCPU(b *testing.B) func() {
	b.Helper()
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	return func() { b.ReportMetric(float64((used()-before).Microseconds())/float64(b.N), "cpu-µs/op") }
}

// BenchmarkDeliver delivers events that are in the stream: fetching, signing, calling, logging and acknowledging, with
// the NATS server and the receiver in the same process.
func BenchmarkDeliver(b *testing.B) {
	r := newRig(b)
	url, done := benchReceiver(b, b.N)
	for i := range b.N {
		e := fired(fmt.Sprintf("pay:order:callback:%d", i), []byte(`{"order":42,"amount":1999}`))
		m := &nats.Msg{Subject: e.Key.Subject("timers", keys.Fired), Data: e.AppendJSON(nil)}
		if _, err := r.js.PublishMsgAsync(m); err != nil {
			b.Fatal(err)
		}
	}
	<-r.js.PublishAsyncComplete()
	b.ResetTimer()
	defer reportCPU(b)()
	r.deliver(parse(b, to(url, "secrets: [env:A]")))
	<-done
	b.StopTimer()
	r.records(b.N)
}

// BenchmarkBareCalls makes the same calls from a loop without anything else: the floor.
func BenchmarkBareCalls(b *testing.B) {
	url, done := benchReceiver(b, b.N)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	e := fired("pay:order:callback:1", []byte(`{"order":42,"amount":1999}`))
	body := e.AppendJSON(nil)
	b.ResetTimer()
	defer reportCPU(b)()
	var left atomic.Int64
	left.Store(int64(b.N))
	var workers sync.WaitGroup
	for range 64 {
		workers.Go(func() {
			for left.Add(-1) >= 0 {
				q, err := http.NewRequestWithContext(b.Context(), http.MethodPost, url, bytes.NewReader(body))
				if err != nil {
					b.Error(err)
					return
				}
				response, err := client.Do(q)
				if err != nil {
					b.Error(err)
					return
				}
				_ = response.Body.Close()
			}
		})
	}
	workers.Wait()
	<-done
}
