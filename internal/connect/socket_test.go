package connect

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// pair returns the two ends of a connection; the first one is wrapped.
func pair(t *testing.T, network, address string) (wrapped, plain net.Conn) {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := l.Accept()
		accepted <- c
	}()
	wrapped, err = socketDialer{}.Dial(network, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	plain = <-accepted
	t.Cleanup(func() {
		_ = wrapped.Close()
		_ = plain.Close()
	})
	return wrapped, plain
}

// More than the sockets hold goes through whole, in both directions at once.
func TestLargeTransfers(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			address := "127.0.0.1:0"
			if network == "unix" {
				address = filepath.Join(t.TempDir(), "s")
			}
			wrapped, plain := pair(t, network, address)
			sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
			failed := make(chan error, 3)
			go func() {
				_, err := io.Copy(plain, plain)
				failed <- err
			}()
			go func() {
				n, err := wrapped.Write(sent)
				if err == nil && n != len(sent) {
					err = io.ErrShortWrite
				}
				failed <- err
			}()
			got := make([]byte, len(sent))
			if _, err := io.ReadFull(wrapped, got); err != nil || !bytes.Equal(got, sent) {
				t.Fatalf("what came back differs: %v", err)
			}
			if err := <-failed; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestReadAndWriteAfterTheEnd(t *testing.T) {
	t.Parallel()
	wrapped, plain := pair(t, "tcp", "127.0.0.1:0")
	if n, err := wrapped.Read(nil); n != 0 || err != nil {
		t.Errorf("read of nothing: %d, %v", n, err)
	}
	if err := wrapped.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	_, err := wrapped.Read(make([]byte, 1))
	if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() ||
		!errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("deadline: %v", err)
	}
	if !strings.HasPrefix(err.Error(), "read tcp 127.0.0.1:") {
		t.Errorf("deadline: %v", err)
	}
	if err := wrapped.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	_ = plain.Close()
	if _, err := wrapped.Read(make([]byte, 1)); err != io.EOF { //nolint:errorlint // io.Reader wants it as it is
		t.Errorf("closed by the other side: %v, want EOF", err)
	}
}

func TestConnectionReset(t *testing.T) {
	t.Parallel()
	wrapped, plain := pair(t, "tcp", "127.0.0.1:0")
	if err := plain.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	_ = plain.Close()
	if _, err := wrapped.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read: %v, want a reset", err)
	}
	if _, err := wrapped.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write: %v, want a broken pipe", err)
	}
}

// Closing a connection ends a read and a write that are waiting.
func TestCloseEndsReadAndWrite(t *testing.T) {
	t.Parallel()
	wrapped, _ := pair(t, "tcp", "127.0.0.1:0")
	ended := make(chan error, 2)
	started := make(chan struct{}, 2)
	go func() {
		started <- struct{}{}
		_, err := wrapped.Read(make([]byte, 1))
		ended <- err
	}()
	go func() {
		started <- struct{}{}
		_, err := wrapped.Write(make([]byte, 64<<20))
		ended <- err
	}()
	<-started
	<-started
	if err := wrapped.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("%v, want closed", err)
		}
	}
	if _, err := wrapped.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("write after that: %v, want closed", err)
	}
}

// A connection that is no socket stays as it is.
func TestNoSocket(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	defer func() { _ = b.Close() }()
	defer func() { _ = a.Close() }()
	if wrapSocket(a) != a {
		t.Error("a pipe was wrapped")
	}
}

func TestConnectionRefused(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if c, err := (socketDialer{}).Dial("tcp", l.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) || c != nil {
		t.Errorf("got %v, %v; want refused", c, err)
	}
}
