package testenv

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

// OldNATS forwards connections to a NATS server that looks as if it were of another version: it says so when a client
// connects. It returns the URL, and ends with t.
func OldNATS(t testing.TB, s *NATSServer, version string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // it is closed
			}
			all.Go(func() { forwardAs(client, s.Addr(), version) })
		}
	})
	return "nats://" + l.Addr().String()
}

// forwardAs forwards one connection until either side closes it.
func forwardAs(client net.Conn, target, version string) {
	defer func() { _ = client.Close() }()
	upstream, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer func() { _ = upstream.Close() }()
	var sending sync.WaitGroup
	defer sending.Wait()
	sending.Go(func() {
		_, _ = io.Copy(upstream, client)
		_ = upstream.Close()
	})
	defer func() { _ = client.Close() }()
	from := bufio.NewReader(upstream)
	greeting, err := from.ReadBytes('\n')
	if err != nil {
		return
	}
	is, seems := fmt.Appendf(nil, "%q:%q", "version", server.VERSION), fmt.Appendf(nil, "%q:%q", "version", version)
	if _, err := client.Write(bytes.Replace(greeting, is, seems, 1)); err == nil {
		_, _ = io.Copy(client, from)
	}
}
