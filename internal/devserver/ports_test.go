package devserver_test

import (
	"net"
	"runtime"
	"testing"

	"github.com/timerd-io/timerd/internal/devserver"
)

func TestFreeIsNeverTheSameTwice(t *testing.T) {
	if runtime.GOOS != "linux" {
		return // elsewhere a port is only looked at
	}
	seen := map[int]bool{}
	for range 500 {
		port, err := devserver.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		if seen[port] {
			t.Fatalf("port %d was given twice", port)
		}
		seen[port] = true
	}
}

// A server can listen on the port, go away and come back.
func TestFreePortCanBeListenedOn(t *testing.T) {
	port, err := devserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		l, err := net.Listen("tcp", devserver.Address(port))
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() {
			c, err := l.Accept()
			if err == nil {
				err = c.Close()
			}
			served <- err
		}()
		c, err := net.Dial("tcp", devserver.Address(port))
		if err != nil {
			t.Fatal(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
