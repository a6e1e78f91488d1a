package deliver_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/timerd-io/timerd/event"
)

// Without allow_private no special address is called, in any spelling and under any name.
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
		"127.0.0.1", "localhost", "LOCALHOST.", "127.0.0.2", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]",
		"[::ffff:7f00:1]", "[64:ff9b::7f00:1]",
		"10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "[fe80::1]", "[fd00::1]", "100.64.0.1", "192.0.2.1",
		"198.18.0.1", "224.0.0.1", "255.255.255.255",
	} {
		got := r.deliverOne(fmt.Sprint(i), urlPayload("http://"+host+":"+port+"/"))
		if got.Result != event.ResultDead || !strings.Contains(got.Error, "allow_private") {
			t.Errorf("%s: %+v", host, got)
		}
	}
	// These are addresses to some resolvers and proxies, and no hosts here.
	for i, host := range []string{"127.1", "2130706433", "0x7f.1", "0177.0.0.1"} {
		if got := r.deliverOne(fmt.Sprint("odd-", i), urlPayload(
			"http://"+host+":"+port+"/")); got.Result != event.ResultDead {
			t.Errorf("%s: %+v", host, got)
		}
	}
	if n := len(v.requests()); n > 0 {
		t.Errorf("%d requests", n)
	}
}

// Allowed addresses are called, and no others.
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

// Of a host with several addresses one is refused, and the other, which is allowed, does not answer for a while: that
// is tried again. Only a host all of whose addresses are refused is given up.
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
		if got := r.deliverOne(fmt.Sprint(i),
			urlPayload("http://several.example:"+port+"/")); got.Result != test.result ||
			!strings.Contains(got.Error, test.text) {
			t.Errorf("%v: %+v, want %s, %s", test.addrs, got, test.result, test.text)
		}
	}
}

// A stranger's URL has the usual ports, or the file's; an address in deny is refused even if a wider range is allowed.
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
		"usual": {event.ResultDead, "is not in ports:"}, "named": {event.ResultDelivered, ""},
		"fixed":    {event.ResultDelivered, ""},
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
