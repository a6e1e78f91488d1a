package faults_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// The time and the memory of timerd reconcile for the events of a million timers, which a restored Redis has or has
// not.
func BenchmarkReconcile(b *testing.B) {
	const events = 1_000_000
	for name, timers := range map[string]int{"gone": 0, "there": events} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				s := system.New(b)
				s.Start().Stop()
				since := s.Now() + 1
				s.After(since)
				due := since + time.Hour.Milliseconds()
				storeEvents(s, events, due)
				setDue(s, timers, due)
				cmd, said := s.Command("reconcile", "--yes", "--since", fmt.Sprintf("@%d", since))
				b.StartTimer()
				start, redis := time.Now(), redisCPU(s)
				if err := cmd.Start(); err != nil {
					b.Fatal(err)
				}
				used := peakOf(cmd.Process.Pid)
				if err := cmd.Wait(); err != nil {
					b.Fatalf("%v\n%s", err, said)
				}
				took := time.Since(start)
				b.StopTimer()
				b.ReportMetric(float64(events)/took.Seconds(), "ids/s")
				b.ReportMetric(<-used, "MiB")
				b.ReportMetric((redisCPU(s)-redis)*1e6/events, "redis-µs/id")
				b.ReportMetric((cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()).Seconds()*1e6/events,
					"timerd-µs/id")
				b.Log(said)
				b.StartTimer()
			}
		})
	}
}

// peakOf sends the greatest resident set of a process in MiB, once it has ended. That of getrusage is at least that of
// this process.
func peakOf(pid int) <-chan float64 {
	done := make(chan float64, 1)
	go func() {
		peak, looks := 0.0, time.NewTicker(20*time.Millisecond)
		defer looks.Stop()
		for ; ; <-looks.C {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			_, after, ok := strings.Cut(string(text), "VmHWM:")
			if err != nil || !ok { // a zombie has none
				done <- peak / 1024
				return
			}
			_, _ = fmt.Sscan(after, &peak)
		}
	}()
	return done
}

// benchKey is the key of one of many timers.
func benchKey(i int) keys.Key {
	return keys.Key{App: "shop", Module: "order", Type: "timeout", ID: fmt.Sprintf("%08d", i)}
}

// storeEvents stores the events of timers due at a time. Comparisons read only their headers.
func storeEvents(s *system.System, n int, due int64) {
	for i := range n {
		key := benchKey(i)
		m := nats.NewMsg(key.Subject("timers", keys.Fired))
		m.Header.Set(nats.MsgIdHdr, keys.EventID(key.String(), due, 1))
		m.Data = make([]byte, 500)
		if _, err := s.JS.PublishMsgAsync(m, jetstream.WithStallWait(system.Patience)); err != nil {
			s.T.Fatal(err)
		}
	}
	<-s.JS.PublishAsyncComplete()
	testenv.Eventually(s.T, system.Patience, func() error {
		if last := s.LastEvent(); last != uint64(n) {
			return fmt.Errorf("%d of %d events", last, n)
		}
		return nil
	}, "the events")
}

// setDue sets timers due at a time.
func setDue(s *system.System, n int, due int64) {
	const batch = 1000
	for i := 0; i < n; i += batch {
		pipe := s.RDB.Pipeline()
		for j := i; j < min(i+batch, n); j++ {
			pipe.Do(s.T.Context(), "FCALL", "timer_set", 1, benchKey(j).String(), "payload", "PXAT", due)
		}
		if _, err := pipe.Exec(s.T.Context()); err != nil {
			s.T.Fatal(err)
		}
	}
}
