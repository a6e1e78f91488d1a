package rawconn_test

import (
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/rawconn"
)

// BenchmarkWakeups measures the processor time of a process that wakes up every 5 ms to ask something over a connection
// and to hear the answer, as timerd asks Redis: with connections of package net on both sides, and with wrapped ones.
// cpu-µs/op is what one such round costs in all, and switches/op how often one of the process's threads went to sleep,
// the runtime's own threads included.
func BenchmarkWakeups(b *testing.B) {
	for _, c := range []struct {
		name string
		wrap func(net.Conn) net.Conn
	}{{"net", func(c net.Conn) net.Conn { return c }}, {"raw", rawconn.Wrap}} {
		b.Run(c.name, func(b *testing.B) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			ended := make(chan error, 1)
			go func() {
				accepted, err := l.Accept()
				if err == nil {
					answering := c.wrap(accepted)
					_, err = io.Copy(struct{ io.Writer }{answering}, struct{ io.Reader }{answering})
					_ = accepted.Close()
				}
				ended <- err
			}()
			dialled, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			asking := c.wrap(dialled)
			message := make([]byte, 100)
			ticker := time.NewTicker(5 * time.Millisecond)
			defer ticker.Stop()
			began := usage(b)
			b.ResetTimer()
			for range b.N {
				<-ticker.C
				if _, err := asking.Write(message); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(asking, message); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			used := usage(b)
			b.ReportMetric(float64(used.Utime.Nano()+used.Stime.Nano()-began.Utime.Nano()-began.Stime.Nano())/1e3/float64(b.N), "cpu-µs/op")
			b.ReportMetric(float64(used.Nvcsw-began.Nvcsw)/float64(b.N), "switches/op")
			_ = dialled.Close()
			if err := <-ended; err != nil {
				b.Fatal(err)
			}
		})
	}
}

// usage returns what the process has used.
func usage(b *testing.B) syscall.Rusage {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return used
}
