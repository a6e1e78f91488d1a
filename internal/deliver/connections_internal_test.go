package deliver

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"
)

// keeper is a host that answers the first call on its first connection, and keeps that connection. The test decides
// about the next call there.
type keeper struct {
	t        *testing.T
	listener net.Listener
	last     func(net.Conn) // the fate of the first connection after its use
	reads    bool           // it reads the second call before
	dropping chan struct{}  // has it end the first connection without a second call
	later    func(net.Conn) // the fate of a call on another connection; nil: it is answered

	mu    sync.Mutex
	calls int
}

func (k *keeper) serve() {
	for first := true; ; first = false {
		conn, err := k.listener.Accept()
		if err != nil {
			return
		}
		go k.hold(conn, first)
	}
}

func (k *keeper) hold(conn net.Conn, first bool) {
	defer conn.Close()
	from := bufio.NewReader(conn)
	read := func() bool {
		r, err := http.ReadRequest(from)
		if err != nil {
			return false
		}
		if body, err := io.ReadAll(r.Body); err != nil || string(body) != "{}" || r.Header.Get("Webhook-Id") != "1" {
			k.t.Errorf("body %q, %v", body, err)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.calls++
		return true
	}
	answer := func(conn net.Conn) { _, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") }
	switch {
	case !read():
	case !first && k.later != nil:
		k.later(conn)
	case !first:
		answer(conn)
	default:
		answer(conn)
		if k.reads {
			read()
		} else {
			<-k.dropping
		}
		k.last(conn)
	}
}

// A host that ends a kept connection costs no attempt: the call is made once more, over a new one. That holds whenever
// and however it ends, as long as no byte of an answer has come.
func TestKeptConnectionThatEnds(t *testing.T) {
	t.Parallel()
	closes := func(conn net.Conn) { _ = conn.Close() }
	resets := func(conn net.Conn) {
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	}
	says := func(text string) func(net.Conn) {
		return func(conn net.Conn) {
			_, _ = io.WriteString(conn, text)
			_ = conn.Close()
		}
	}
	vanishes := func(conn net.Conn) { _ = conn.(*tls.Conn).NetConn().Close() } // without close_notify
	for _, test := range []struct {
		name   string
		secure bool
		reads  bool // the second call is read before
		last   func(net.Conn)
		later  func(net.Conn)
		want   int // calls that the host has read; negative: and the second fails
	}{
		{name: "closed while idle", last: closes, want: 2},
		{name: "reset while idle", last: resets, want: 2},
		{name: "closed with 408 while idle", last: says("HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n"),
			want: 2},
		{name: "none: an answer in lower case", reads: true,
			last: says("http/1.1 200 ok\r\ncontent-length: 2\r\n\r\nok"), want: 2},
		{name: "closed after the call was read", reads: true, last: closes, want: 3},
		{name: "reset after the call was read", reads: true, last: resets, want: 3},
		{name: "TLS, closed while idle", secure: true, last: closes, want: 2},
		{name: "TLS, vanished while idle", secure: true, last: vanishes, want: 2},
		{name: "TLS, closed after the call was read", secure: true, reads: true, last: closes, want: 3},
		{name: "TLS, vanished after the call was read", secure: true, reads: true, last: vanishes, want: 3},
		{name: "a part of an answer", reads: true, last: says("HTTP/1.1 2"), want: -2},
		{name: "an answer that breaks off", reads: true, last: says("HTTP/1.1 200 OK\r\nContent-"), want: -2},
		{name: "the new one is closed as well", reads: true, last: closes, later: closes, want: -3},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			k := &keeper{t: t, last: test.last, reads: test.reads, later: test.later, dropping: make(chan struct{})}
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			url, e := "http://"+listener.Addr().String(), &Endpoint{Timeout: time.Minute, Concurrency: 1}
			if k.listener = listener; test.secure {
				url, k.listener, e = secured(t, listener, e)
			}
			defer k.listener.Close()
			go k.serve()

			ended, once := make(chan struct{}), new(sync.Once)
			dial := func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, address)
				return &told{Conn: conn, ended: ended, once: once}, err
			}
			pool := newPooled(httpTransport(e, 1, dial))
			defer pool.usual.CloseIdleConnections()
			call := func(ctx context.Context) error {
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("{}"))
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Webhook-Id", "1")
				response, err := pool.RoundTrip(r)
				if err != nil {
					return err
				}
				defer response.Body.Close()
				if body, err := io.ReadAll(response.Body); err != nil || string(body) != "ok" {
					return fmt.Errorf("answer %q: %w", body, err)
				}
				return nil
			}
			if err := call(t.Context()); err != nil {
				t.Fatal(err)
			}
			drop := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
				if info.Reused && !test.reads { // just before the call is written
					close(k.dropping)
					<-ended
				}
			}}
			err = call(httptrace.WithClientTrace(t.Context(), drop))
			k.mu.Lock()
			defer k.mu.Unlock()
			if (err != nil) != (test.want < 0) || k.calls != max(test.want, -test.want) {
				t.Errorf("%d calls were read, want %d; %v", k.calls, test.want, err)
			}
		})
	}
}

// told is a connection that signals its close here.
type told struct {
	net.Conn

	ended chan struct{}
	once  *sync.Once
}

func (c *told) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { close(c.ended) })
	return err
}

// secured has a listener speak TLS.
func secured(t *testing.T, l net.Listener, e *Endpoint) (string, net.Listener, *Endpoint) {
	t.Helper()
	server := httptest.NewTLSServer(nil) // for its certificate
	defer server.Close()
	e.Authorities = server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{Certificates: server.TLS.Certificates, MinVersion: tls.VersionTLS12}
	return "https://127.0.0.1:" + port, tls.NewListener(l, config), e
}
