package testenv

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

// OldNATS forwards connections to a NATS server that pretends to be of another version. It returns the URL. The
// connections end with t, unclosed ones too.
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
			all.Go(func() { forwardAs(t.Context(), client, s.Addr(), version) })
		}
	})
	return "nats://" + l.Addr().String()
}

// forwardAs forwards one connection until either side closes it or ctx ends.
func forwardAs(ctx context.Context, client net.Conn, target, version string) {
	defer func() { _ = client.Close() }()
	upstream, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer func() { _ = upstream.Close() }()
	// The end of either direction, and that of ctx, ends both.
	defer context.AfterFunc(ctx, func() { _ = upstream.Close() })()
	var sending sync.WaitGroup
	defer sending.Wait()
	sending.Go(func() {
		_, _ = io.Copy(upstream, client)
		_ = upstream.Close()
	})
	defer func() { _ = client.Close() }()
	is, seems := fmt.Appendf(nil, "%q:%q", "version", server.VERSION), fmt.Appendf(nil, "%q:%q", "version", version)
	for from := bufio.NewReader(upstream); ; {
		line, err := from.ReadBytes('\n')
		if err != nil {
			return
		}
		// A server sends INFO when a client connects, and again after the login.
		if bytes.HasPrefix(line, []byte("INFO ")) {
			line = bytes.Replace(line, is, seems, 1)
		}
		if _, err := client.Write(line); err != nil {
			return
		}
	}
}
