package deliver

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// maxAnswerHeader bounds the headers of an answer, in bytes.
	maxAnswerHeader = 64 << 10
	// idleTimeout is the time after which an unused connection is closed. maxIdle limits the idle connections of all
	// endpoints together, but each endpoint may have leastIdle: an endpoint with more hosts than idle connections makes
	// a new connection for nearly each call. bufferSize is the size of one read or write; calls and answers are small.
	idleTimeout = time.Minute
	maxIdle     = 10 << 10
	leastIdle   = 64
	bufferSize  = 1 << 10
	// pingAfter is the silence after which an HTTP/2 connection is tested, and pingTimeout bounds the test.
	pingAfter   = 15 * time.Second
	pingTimeout = 5 * time.Second
)

// transport calls hosts for one endpoint. Each new connection is checked with its final address: before, the name
// may have resolved to another address, and it may resolve to several.
//
// Calls through a proxy have connections of their own, to the proxy alone. The operator has chosen the proxy, and it
// may be anywhere. It resolves the names, and must do the guarding; timerd still checks an address in the URL itself.
type transport struct {
	guard   guard
	proxy   func(*http.Request) (*url.URL, error)
	direct  pooled
	proxied pooled
}

// pooled is a transport that keeps connections, with a second transport that uses only new ones.
type pooled struct{ usual, fresh *http.Transport }

func newPooled(usual *http.Transport) pooled {
	fresh := usual.Clone()
	fresh.DisableKeepAlives = true
	return pooled{usual, fresh}
}

// RoundTrip makes a call. Many servers close a kept connection without a word, while the next call is already on its
// way. So if a kept connection ends before the first byte of an answer, the call is made once more, over a new
// connection, and only the second call counts. The host may have read the first one: it gets the same webhook-id twice.
// There is never a third call.
func (p pooled) RoundTrip(r *http.Request) (*http.Response, error) {
	var kept atomic.Pointer[watchedConn]
	var answered atomic.Bool
	trace := &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			kept.Store(nil)
			if info.Reused {
				kept.Store(watched(info.Conn))
			}
		},
		GotFirstResponseByte: func() { answered.Store(true) },
	}
	response, err := p.usual.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
	conn := kept.Load()
	if err == nil || conn == nil || !conn.ended.Load() || answered.Load() || r.Context().Err() != nil {
		return response, err
	}
	again := r.Clone(r.Context())
	if again.Body, err = r.GetBody(); err != nil {
		return nil, err
	}
	return p.fresh.RoundTrip(again)
}

// watchedConn is a connection that notes its end. The errors of package net/http are no reliable sign: one of them, for
// a connection that the host closed just before a request, is not exported.
//
// It also upper-cases the beginning of an answer: package net/http requires that, and some hosts do not send it so. It
// cannot do that under TLS.
type watchedConn struct {
	net.Conn

	ended atomic.Bool // by the host, by an error, or by Close
	asked atomic.Bool // something was written since the last read
	begun int         // bytes of protocolName read so far in this answer; for the reading goroutine
}

// protocolName begins each answer.
const protocolName = "HTTP/"

// watched returns the watchedConn below conn, nil if there is none.
func watched(conn net.Conn) *watchedConn {
	for {
		if w, ok := conn.(*watchedConn); ok {
			return w
		}
		over, ok := conn.(interface{ NetConn() net.Conn }) // TLS
		if !ok {
			return nil
		}
		conn = over.NetConn()
	}
}

func (w *watchedConn) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if n > 0 && w.asked.Swap(false) {
		w.begun = 0
	}
	for i := 0; i < n && w.begun < len(protocolName); i++ {
		if upper := protocolName[w.begun : w.begun+1]; strings.EqualFold(string(b[i:i+1]), upper) {
			b[i] = upper[0]
			w.begun++
		} else {
			w.begun = len(protocolName)
		}
	}
	return n, w.note(err)
}

func (w *watchedConn) Write(b []byte) (int, error) {
	w.asked.Store(true)
	n, err := w.Conn.Write(b)
	return n, w.note(err)
}

// Close notes the end of the connection before it closes the connection. So the end is noted before anybody gets an
// error.
func (w *watchedConn) Close() error {
	w.ended.Store(true)
	return w.Conn.Close()
}

func (w *watchedConn) note(err error) error {
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		w.ended.Store(true)
	}
	return err
}

// newTransport returns the transport of one endpoint; endpoints is the number of all endpoints. proxy returns the proxy
// of a request, nil for none.
func newTransport(e *Endpoint, endpoints int, proxy func(*http.Request) (*url.URL, error)) *transport {
	t := &transport{guard: newGuard(e), proxy: proxy}
	idle := max(maxIdle/endpoints, leastIdle)
	// Go's own resolver: the system's takes a thread for each name with a silent server, and there are only 500.
	resolver := &net.Resolver{PreferGo: true, Dial: net.DefaultResolver.Dial}
	dialer := &net.Dialer{Timeout: e.Timeout, KeepAlive: idleTimeout / 2, Resolver: resolver}
	checked := *dialer
	checked.Control = t.guard.control
	proxied := httpTransport(e, idle, dialer.DialContext)
	proxied.Proxy = proxy
	t.direct, t.proxied = newPooled(httpTransport(e, idle, guarded{t.guard, &checked}.DialContext)), newPooled(proxied)
	return t
}

// httpTransport returns a transport that keeps a number of idle connections, and connects by dial.
func httpTransport(e *Endpoint, idle int, dial func(ctx context.Context, network, address string) (net.Conn,
	error)) *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &watchedConn{Conn: conn}, nil
		},
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: e.Authorities},
		TLSHandshakeTimeout:    e.Timeout,
		DisableCompression:     true, // a small answer may not become a large one
		MaxIdleConns:           idle,
		MaxIdleConnsPerHost:    e.Concurrency,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxAnswerHeader,
		ReadBufferSize:         bufferSize,
		WriteBufferSize:        bufferSize,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}
}

// RoundTrip makes a call. Its error wraps one for which isRefused is true if the host's address may not be called.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	proxy, err := t.proxy(r)
	if err != nil {
		// err shows the URL, with its password
		return nil, errors.New("the URL of the proxy in the environment cannot be read")
	}
	if proxy == nil {
		return t.direct.RoundTrip(r)
	}
	if addr, err := netip.ParseAddr(r.URL.Hostname()); err == nil {
		if err := t.guard.refuses(addr); err != nil {
			return nil, err
		}
	}
	return t.proxied.RoundTrip(r)
}

// CloseIdleConnections closes idle connections, and the others once they are idle.
func (t *transport) CloseIdleConnections() {
	t.direct.usual.CloseIdleConnections()
	t.proxied.usual.CloseIdleConnections()
}

// newClient returns the client for an endpoint. It follows no redirect: the signature is for the URL's owner alone.
func newClient(t http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
