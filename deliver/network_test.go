package deliver_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/timerd-io/timerd/deliver"
	"github.com/timerd-io/timerd/event"
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

// Without allow_private no special address is called, however it is written and whatever name stands for it.
func TestPrivateAddressesAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	v := receive(t, nil)
	_, port, err := net.SplitHostPort(v.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	r.deliver(parse(t, "endpoints: [{match: pay, url: '{data.url}', timeout: 3s, ports: any}]"))
	for i, host := range []string{
		"127.0.0.1", "localhost", "LOCALHOST.", "127.0.0.2", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]",
		"10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "[fe80::1]", "[fd00::1]", "100.64.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "255.255.255.255",
	} {
		got := r.deliverOne(fmt.Sprint(i), urlPayload("http://"+host+":"+port+"/"))
		if got.Result != event.ResultDead || !strings.Contains(got.Error, "allow_private") {
			t.Errorf("%s: %+v", host, got)
		}
	}
	// These are addresses to some resolvers and proxies, and no hosts here.
	for i, host := range []string{"127.1", "2130706433", "0x7f.1", "0177.0.0.1"} {
		if got := r.deliverOne(fmt.Sprint("odd-", i), urlPayload("http://"+host+":"+port+"/")); got.Result != event.ResultDead {
			t.Errorf("%s: %+v", host, got)
		}
	}
	if n := len(v.requests()); n > 0 {
		t.Errorf("%d requests", n)
	}
}

// What is allowed is called, and nothing beside it.
func TestAllowPrivate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	v := receive(t, nil, func(s *httptest.Server) {
		l, err := net.Listen("tcp", "127.0.0.2:0")
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Listener.Close()
		s.Listener = l
	})
	r.deliver(parse(t, "endpoints: [{match: pay, url: '{data.url}', allow_private: [127.0.0.2], ports: any}]"))
	if got := r.deliverOne("allowed", urlPayload(v.URL)); got.Result != event.ResultDelivered {
		t.Errorf("%+v", got)
	}
	if got := r.deliverOne("beside", urlPayload("http://127.0.0.1/")); got.Result != event.ResultDead {
		t.Errorf("%+v", got)
	}
}

// A name that stands for an allowed address at one moment and for another one at the next does not help.
func TestNamesThatChangeTheirAddress(t *testing.T) { //nolint:paralleltest // it changes the resolver of the process
	var allowed atomic.Bool
	allowed.Store(true)
	before := net.DefaultResolver
	defer func() { net.DefaultResolver = before }()
	net.DefaultResolver = nameserver(t, func() []netip.Addr {
		if allowed.Load() {
			return []netip.Addr{netip.MustParseAddr("127.0.0.2")}
		}
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	})
	r := newRig(t)
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	v := receive(t, nil, func(s *httptest.Server) {
		_ = s.Listener.Close()
		s.Listener = l
	})
	address := fmt.Sprintf("http://rebind.example:%d/", l.Addr().(*net.TCPAddr).Port)
	v.Config.SetKeepAlivesEnabled(false)
	r.deliver(parse(t, "endpoints: [{match: pay, url: '{data.url}', allow_private: [127.0.0.2], ports: any}]"))
	if got := r.deliverOne("before", urlPayload(address)); got.Result != event.ResultDelivered {
		t.Errorf("%+v", got)
	}
	allowed.Store(false)
	if got := r.deliverOne("after", urlPayload(address)); got.Result != event.ResultDead || len(v.requests()) != 1 {
		t.Errorf("%+v, %d requests", got, len(v.requests()))
	}
}

// Of a host with several addresses one is refused, and the other, which is allowed, does not answer for a while: that is
// tried again. Only a host all of whose addresses are refused is given up.
func TestRefusedAddressAmongSeveral(t *testing.T) { //nolint:paralleltest // it changes the resolver of the process
	var all atomic.Pointer[[]netip.Addr]
	before := net.DefaultResolver
	defer func() { net.DefaultResolver = before }()
	net.DefaultResolver = nameserver(t, func() []netip.Addr { return *all.Load() })
	closed := receive(t, nil)
	_, port, err := net.SplitHostPort(closed.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	r := newRig(t)
	r.deliver(parse(t, "endpoints: [{match: pay, url: '{data.url}', allow_private: [127.0.0.1], ports: any}]"))
	for i, test := range []struct {
		addrs  []string
		result event.Result
		text   string
	}{
		{[]string{"127.0.0.2", "127.0.0.1"}, event.ResultRetry, "connection refused"},
		{[]string{"127.0.0.1", "127.0.0.2"}, event.ResultRetry, "connection refused"},
		{[]string{"127.0.0.2", "127.0.0.3"}, event.ResultDead, "allow_private"},
	} {
		var addrs []netip.Addr
		for _, addr := range test.addrs {
			addrs = append(addrs, netip.MustParseAddr(addr))
		}
		all.Store(&addrs)
		if got := r.deliverOne(fmt.Sprint(i), urlPayload("http://several.example:"+port+"/")); got.Result != test.result || !strings.Contains(got.Error, test.text) {
			t.Errorf("%v: %+v, want %s, %s", test.addrs, got, test.result, test.text)
		}
	}
}

// A stranger's URL has the usual ports, or those that the file names; an address that the file refuses is refused also
// where a wider range is allowed.
func TestPortsAndDeniedAddresses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	v := receive(t, nil)
	r.deliver(parse(t, `
endpoints:
- {match: 'pay:order:usual', url: '{data.url}', allow_private: [127.0.0.0/8]}
- {match: 'pay:order:named', url: '{data.url}', allow_private: [127.0.0.0/8], ports: [`+v.URL[strings.LastIndexByte(v.URL, ':')+1:]+`]}
- {match: 'pay:order:callback', url: '{data.url}', allow_private: [127.0.0.0/8], deny: ['127.0.0.1'], ports: any}
- {match: 'pay:order:fixed', url: '`+v.URL+`', allow_private: [127.0.0.0/8]}
`))
	for _, module := range []string{"usual", "named", "callback", "fixed"} {
		r.publish(fired("pay:order:"+module+":"+module, []byte(urlPayload(v.URL))))
	}
	records := r.records(4)
	for id, want := range map[string]struct {
		result event.Result
		text   string
	}{
		"usual": {event.ResultDead, "which ports: does not name"}, "named": {event.ResultDelivered, ""}, "fixed": {event.ResultDelivered, ""},
		"callback": {event.ResultDead, "deny"},
	} {
		if got := records[id][0]; got.Result != want.result || !strings.Contains(got.Error, want.text) {
			t.Errorf("%s: %+v, want %s %s", id, got, want.result, want.text)
		}
	}
}

// nameserver returns a resolver for which every name stands for some addresses of IPv4.
func nameserver(t *testing.T, addresses func() []netip.Addr) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		buf := make([]byte, 512)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			question := 12
			for buf[question] != 0 {
				question += int(buf[question]) + 1
			}
			end := question + 5
			answer := append([]byte{}, buf[:min(end, n)]...)
			answer[2], answer[3] = 0x81, 0x80 // a response, without error
			clear(answer[6:12])
			if binary.BigEndian.Uint16(buf[question+1:]) == 1 { // A
				all := addresses()
				answer[7] = byte(len(all))
				for _, address := range all {
					four := address.As4()
					answer = append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
					answer = append(answer, four[:]...)
				}
			}
			_, _ = conn.WriteTo(answer, from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// A redirect to a private address, or anywhere, is not followed; the test of answers shows it for others.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	inside := receive(t, nil)
	outside := receive(t, func(w http.ResponseWriter, q *http.Request) {
		http.Redirect(w, q, inside.URL, http.StatusTemporaryRedirect)
	})
	r.deliver(parse(t, to(outside.URL)))
	if got := r.deliverOne("1", "{}"); got.Result != event.ResultRetry || got.Status != 307 || len(inside.requests()) != 0 {
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
		if record[0].Result != event.ResultRetry || record[0].Status != 0 || !strings.Contains(record[0].Error, "certificate") {
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
	v := receive(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("x", 10_000)) }, func(s *httptest.Server) {
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
		"/endless": {"delivered", 200}, "/endless-error": {"retry", 500}, "/slow": {"delivered", 200}, "/slow-error": {"retry", 500},
		"/headers": {"retry", 0}, "/bomb": {"retry", 500}, "/bytes": {"retry", 500}, "/length": {"delivered", 200}, "": {"retry", 0},
	} {
		address := v.URL + path
		if path == "" {
			address = "http://" + raw.Addr().String()
		}
		watch := testenv.StartStopwatch()
		got := r.deliverOne(strings.Trim(path, "/")+"x", urlPayload(address))
		if got.Result != want.result || got.Status != want.status || len(got.Error) > 1100 || strings.ContainsAny(got.Error, "\x00\x1b\r\n") {
			t.Errorf("%s: %+v", path, got)
		}
		watch.AtMost(t, 2*time.Second+patience/6, path)
	}
}

// Calls go through a proxy where one is set, which looks names up; addresses in the URL are guarded all the same, and the
// proxy itself cannot be named as a receiver.
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
	r.deliver(parse(t, "endpoints: [{match: pay, url: '{data.url}', ports: any, ca: '"+authority.File+"'}]"), func(d *deliver.Deliverer) {
		d.Proxy = func(q *http.Request) (*url.URL, error) {
			if q.URL.Scheme == "https" {
				return at, nil
			}
			return nil, nil
		}
	})
	if got := r.deliverOne("named", urlPayload("https://merchant.example/x")); got.Result != event.ResultDelivered || *asked.Load() != "merchant.example:443" {
		t.Errorf("%+v, asked for %s", got, *asked.Load())
	}
	asked.Store(nil)
	for i, address := range []string{"https://169.254.169.254/", "https://[::1]/", "https://[::ffff:10.0.0.1]/", proxy.URL} {
		if got := r.deliverOne(fmt.Sprint(i), urlPayload(address)); got.Result != event.ResultDead || asked.Load() != nil {
			t.Errorf("%s: %+v", address, got)
		}
	}
}

// A host that says it switches protocols has the connection to itself, which no timeout of the call ends. It cannot keep
// the place of the call, nor the connection.
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
