package deliver_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/deliver"
	"github.com/timerd-io/timerd/internal/testenv"
)

// deliverOne publishes an event and returns its record in the log.
func (r *rig) deliverOne(id, payload string) event.Delivery {
	r.t.Helper()
	before := r.log.Len()
	r.publish(fired("pay:order:callback:"+id, []byte(payload)))
	return r.records(before + 1)[id][0]
}

func urlPayload(url string) string { return `{"url":"` + url + `"}` }

// A redirect to a private address, or anywhere, is not followed; the test of answers shows it for others.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	inside := receive(t, nil)
	outside := receive(t, func(w http.ResponseWriter, q *http.Request) {
		http.Redirect(w, q, inside.URL, http.StatusTemporaryRedirect)
	})
	r.deliver(parse(t, to(outside.URL)))
	if got := r.deliverOne("1", "{}"); got.Result != event.ResultRetry || got.Status != 307 ||
		len(inside.requests()) != 0 {
		t.Errorf("%+v, %d requests inside", got, len(inside.requests()))
	}
}

// Certificates are verified; with the right authority calls go over HTTP/2, all over one connection.
func TestTLS(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	authority := testenv.NewAuthority(t)
	cert, key := authority.Issue("merchant", "merchant.localhost", "127.0.0.1")
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	var connections atomic.Int64
	v := receive(t, nil, func(s *httptest.Server) {
		s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
		s.EnableHTTP2 = true
		s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				connections.Add(1)
			}
		}
		s.StartTLS()
	})
	other := strings.Replace(v.URL, "127.0.0.1", "localhost", 1)
	r.deliver(parse(t, fmt.Sprintf(`
endpoints:
- {match: 'pay:order:system', url: %q, %s}
- {match: 'pay:order:name', url: %q, %s, ca: %s}
- {match: 'pay:order:callback', url: %q, %s, ca: %s}
`, v.URL, local, other, local, authority.File, v.URL, local, authority.File)))
	r.publish(fired("pay:order:system:unknown", []byte("{}")), fired("pay:order:name:other", []byte("{}")))
	for id, record := range r.records(2) {
		if record[0].Result != event.ResultRetry || record[0].Status != 0 ||
			!strings.Contains(record[0].Error, "certificate") {
			t.Errorf("%s: %+v", id, record)
		}
	}
	if len(v.requests()) > 0 {
		t.Fatal("called though the certificate is not verified")
	}
	before := connections.Load()
	for i := range 20 {
		if got := r.deliverOne(fmt.Sprint(i), "{}"); got.Result != event.ResultDelivered {
			t.Fatalf("%+v", got)
		}
	}
	if n := connections.Load() - before; n != 1 {
		t.Errorf("%d connections for 20 calls, want 1", n)
	}
	for _, q := range v.requests() {
		if q.proto != "HTTP/2.0" {
			t.Errorf("called over %s", q.proto)
		}
	}
}

// Over HTTP/1.1 connections are used again, and a server that closes them without a word costs no attempt.
func TestConnectionsAreReused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var connections atomic.Int64
	v := receive(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("x", 10_000)) },
		func(s *httptest.Server) {
			s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
				if state == http.StateNew {
					connections.Add(1)
				}
			}
		})
	r.deliver(parse(t, to(v.URL, "concurrency: 1")))
	for i := range 10 {
		if got := r.deliverOne(fmt.Sprint(i), "{}"); got.Result != event.ResultDelivered {
			t.Fatalf("%+v", got)
		}
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections for 10 calls, want 1", n)
	}
}

// A server that answers a call by closing a connection that was used before: the call is repeated over a new one.
func TestClosedConnectionsCostNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // one answer a connection, and then a request is read and the connection closed
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				buf := make([]byte, 64<<10)
				for n := range 2 {
					if _, err := conn.Read(buf); err != nil || n == 1 {
						return
					}
					_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				}
			}()
		}
	}()
	r.deliver(parse(t, to("http://"+l.Addr().String(), "concurrency: 1", "body: data")))
	for i := range 6 {
		if got := r.deliverOne(fmt.Sprint(i), "{}"); got.Result != event.ResultDelivered {
			t.Errorf("call %d: %+v", i, got)
		}
	}
}

// Answers that are endless, huge, slow or broken end within the time of a call and take no more memory than they may.
func TestHostileAnswers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	endless := func(w http.ResponseWriter, q *http.Request, status int, pause time.Duration) {
		w.WriteHeader(status)
		chunk := []byte(strings.Repeat("a", 1<<12))
		for q.Context().Err() == nil {
			if _, err := w.Write(chunk); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
			select {
			case <-q.Context().Done():
			case <-time.After(pause):
			}
		}
	}
	v := receive(t, func(w http.ResponseWriter, q *http.Request) {
		switch q.URL.Path {
		case "/endless":
			endless(w, q, 200, 0)
		case "/endless-error":
			endless(w, q, 500, 0)
		case "/slow":
			endless(w, q, 200, 100*time.Millisecond)
		case "/slow-error":
			endless(w, q, 500, time.Minute)
		case "/headers":
			for i := range 1000 {
				w.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("h", 1000))
			}
		case "/bomb":
			w.Header().Set("Content-Encoding", "gzip")
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprint(w, "\x1f\x8b\x08\x00")
		case "/bytes":
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write([]byte("\xff\xfe\x00\x1b[31m\r\nWebhook-Id: x"))
		case "/length":
			w.Header().Set("Content-Length", "1000000")
			fmt.Fprint(w, "short")
		}
	})
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	go func() {
		for {
			conn, err := raw.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "SSH-2.0-OpenSSH_9.2\r\n")
			_ = conn.Close()
		}
	}()
	r.deliver(parse(t, to("{data.url}", "timeout: 2s")))
	for path, want := range map[string]struct {
		result event.Result
		status int
	}{
		"/endless": {"delivered", 200}, "/endless-error": {"retry", 500}, "/slow": {"delivered", 200},
		"/slow-error": {"retry", 500},
		"/headers":    {"retry", 0}, "/bomb": {"retry", 500}, "/bytes": {"retry", 500}, "/length": {"delivered", 200},
		"": {"retry", 0},
	} {
		address := v.URL + path
		if path == "" {
			address = "http://" + raw.Addr().String()
		}
		watch := testenv.StartStopwatch()
		got := r.deliverOne(strings.Trim(path, "/")+"x", urlPayload(address))
		if got.Result != want.result || got.Status != want.status || len(got.Error) > 1100 ||
			strings.ContainsAny(got.Error, "\x00\x1b\r\n") {
			t.Errorf("%s: %+v", path, got)
		}
		watch.AtMost(t, 2*time.Second+patience/6, path)
	}
}

// Calls go through a proxy where one is set, which looks names up; addresses in the URL are guarded all the same, and
// the proxy itself cannot be named as a receiver.
func TestProxy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	authority := testenv.NewAuthority(t)
	cert, key := authority.Issue("merchant", "merchant.example")
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	v := receive(t, nil, func(s *httptest.Server) {
		s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
		s.StartTLS()
	})
	var asked atomic.Pointer[string]
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		asked.Store(&q.Host)
		if q.Method != http.MethodConnect {
			return
		}
		up, err := (&net.Dialer{}).DialContext(q.Context(), "tcp", v.Listener.Addr().String())
		if err != nil {
			t.Error(err)
			return
		}
		defer up.Close()
		down, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer down.Close()
		_, _ = io.WriteString(down, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { _, _ = io.Copy(up, down) }()
		_, _ = io.Copy(down, up)
	}))
	defer proxy.Close()
	at, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	r.deliver(parse(t, "endpoints: [{match: pay, url: '{data.url}', ports: any, ca: '"+authority.File+"'}]"),
		func(d *deliver.Deliverer) {
			d.Proxy = func(q *http.Request) (*url.URL, error) {
				if q.URL.Scheme == "https" {
					return at, nil
				}
				return nil, nil
			}
		})
	if got := r.deliverOne("named", urlPayload("https://merchant.example/x")); got.Result != event.ResultDelivered ||
		*asked.Load() != "merchant.example:443" {
		t.Errorf("%+v, asked for %s", got, *asked.Load())
	}
	asked.Store(nil)
	for i, address := range []string{"https://169.254.169.254/", "https://[::1]/", "https://[::ffff:10.0.0.1]/",
		proxy.URL} {
		if got := r.deliverOne(fmt.Sprint(i), urlPayload(address)); got.Result != event.ResultDead ||
			asked.Load() != nil {
			t.Errorf("%s: %+v", address, got)
		}
	}
}

// A host that says it switches protocols has the connection to itself, which no timeout of the call ends. It cannot
// keep the place of the call, nor the connection.
func TestSwitchedProtocolsEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ended := make(chan struct{})
	v := receive(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		_, _ = io.Copy(io.Discard, conn)
		close(ended)
	})
	r.deliver(parse(t, to(v.URL, "timeout: 1s")))
	if got := r.deliverOne("1", "{}"); got.Result != event.ResultRetry || got.Status != http.StatusSwitchingProtocols {
		t.Errorf("%+v", got)
	}
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the connection is kept")
	}
}
