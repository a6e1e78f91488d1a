package connect

import (
	"bufio"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/devserver"
)

// BenchmarkWakeups measures the processor time of a process that wakes up every 2 ms to ask a Redis server something
// four times in a row, as timerd does for a firing: with a connection of package net, and with a wrapped one. cpu-µs/op
// is the cost of one such round for the asking process, and switches/op the number of times that one of its threads
// went to sleep, the runtime's own threads included.
func BenchmarkWakeups(b *testing.B) {
	server, err := devserver.StartRedis(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := server.Close(); err != nil {
			b.Error(err)
		}
	})
	for _, c := range []struct {
		name string
		wrap func(net.Conn) net.Conn
	}{{"net", func(c net.Conn) net.Conn { return c }}, {"raw", wrapSocket}} {
		b.Run(c.name, func(b *testing.B) {
			dialled, err := net.Dial("tcp", server.Addr())
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = dialled.Close() }()
			asking := c.wrap(dialled)
			answers := bufio.NewReader(asking)
			ticker := time.NewTicker(2 * time.Millisecond)
			defer ticker.Stop()
			began := usage(b)
			for b.Loop() {
				<-ticker.C
				for range 4 {
					if _, err := asking.Write([]byte("PING\r\n")); err != nil {
						b.Fatal(err)
					}
					if _, err := answers.ReadSlice('\n'); err != nil {
						b.Fatal(err)
					}
				}
			}
			used := usage(b)
			b.ReportMetric(float64(
				used.Utime.Nano()+used.Stime.Nano()-began.Utime.Nano()-began.Stime.Nano())/1e3/float64(b.N),
				"cpu-µs/op")
			b.ReportMetric(float64(used.Nvcsw-began.Nvcsw)/float64(b.N), "switches/op")
		})
	}
}

// usage returns the process's usage.
func usage(b *testing.B) syscall.Rusage {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return used
}
