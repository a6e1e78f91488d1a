package deliver

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
)

// A delivery postponed by a circuit waits for the longer of the circuit's time and a tenth of its age, since the
// timer's first event or its replay. None waits beyond its expiry, for any reason.
func TestPostpone(t *testing.T) {
	t.Parallel()
	key := keys.Key{App: "pay", Module: "order", Type: "callback", ID: "1"}
	now := time.UnixMilli(1_800_000_000_000)
	e := &Endpoint{Expire: 72 * time.Hour}
	for _, test := range []struct {
		name    string
		age     time.Duration
		later   bool // it is not the first event
		wait    time.Duration
		circuit bool
		want    time.Duration // -1: a dead letter
	}{
		{"young", time.Minute, false, 30 * time.Second, true, 30 * time.Second},
		{"a tenth of its age", time.Hour, false, 30 * time.Second, true, 6 * time.Minute},
		{"of its first event", time.Hour, true, 30 * time.Second, true, 6 * time.Minute},
		{"for its turn, the age is nothing", time.Hour, true, 2 * time.Second, false, 2 * time.Second},
		{"no longer than it may", 71*time.Hour + 59*time.Minute, true, 10 * time.Minute, true, time.Minute},
		{"nearly expired", 72*time.Hour - time.Millisecond, true, 10 * time.Minute, true, leastWait},
		{"expired", 72 * time.Hour, true, 10 * time.Minute, true, -1},
		{"expired, for its turn", 80 * time.Hour, true, time.Second, false, -1},
		{"for its turn, no longer than it may", 72*time.Hour - time.Second, true, time.Minute, false, time.Second},
		{"from the future, as clocks differ", -time.Hour, false, 30 * time.Second, true, 30 * time.Second},
	} {
		first := now.Add(-test.age)
		ev := event.Event{ID: keys.EventID(key.String(), first.UnixMilli(), 1), Key: key, Due: first, Attempt: 1}
		if test.later {
			ev.Origin = ev.ID
			ev.Due = now.Add(-time.Second)
			ev.ID = keys.EventID(key.String(), ev.Due.UnixMilli(), 1)
		}
		o := postpone(e, ev, held{wait: test.wait, circuit: test.circuit, why: "why"}, now)
		if dead := test.want < 0; dead != (o.result == event.ResultDead) || !dead &&
			(o.result != event.ResultPostponed || *o.after != test.want) {
			t.Errorf("%s: %+v, want %v", test.name, o, test.want)
		}
	}
}

// A replay of an old letter has all its time again, with any origin.
func TestReplayExpiresByItself(t *testing.T) {
	t.Parallel()
	key := keys.Key{App: "pay", Module: "order", Type: "callback", ID: "1"}
	now := time.UnixMilli(1_800_000_000_000)
	e := &Endpoint{Expire: 72 * time.Hour}
	ev := event.Event{Key: key, Due: now, Attempt: 1, Replayed: now.Add(-time.Hour)}
	ev.SetOrigin(now.Add(-30*24*time.Hour), 1)
	if o := postpone(e, ev, held{wait: time.Second, circuit: true, why: "why"},
		now); o.result != event.ResultPostponed || *o.after != 6*time.Minute {
		t.Errorf("replayed an hour ago: %+v, want it put off for a tenth of that", o)
	}
	ev.Replayed = now.Add(-72 * time.Hour)
	if o := postpone(e, ev, held{wait: time.Second, why: "why"}, now); o.result != event.ResultDead ||
		!strings.Contains(o.text, "72h0m0s after its replay") {
		t.Errorf("replayed three days ago: %+v, want a dead letter", o)
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	wrap := func(err error) error {
		return &url.Error{Op: "Post", URL: "https://x/?token=s3cr3t", Err: &net.OpError{Op: "dial", Err: err}}
	}
	dialled := func(to string, err error) error {
		return &url.Error{Op: "Post", URL: "https://x/?token=s3cr3t",
			Err: &net.OpError{Op: "dial", Addr: &net.TCPAddr{IP: net.ParseIP(to), Port: 443}, Err: err}}
	}
	for _, test := range []struct {
		err      error
		stopping bool
		verdict  verdict
		host     bool
	}{
		{wrap(syscall.ECONNREFUSED), false, failed, true},
		{wrap(io.EOF), false, failed, true},
		{wrap(errors.New("tls: bad certificate")), false, failed, true},
		{wrap(syscall.EMFILE), false, returned, false},
		{wrap(syscall.EADDRNOTAVAIL), false, returned, false},
		{dialled("192.0.2.1", syscall.EADDRNOTAVAIL), false, returned, false}, // all ports to it are in use
		{dialled("2001:db8::1", syscall.EADDRNOTAVAIL), false, failed, true},  // there is no IPv6 here
		{dialled("2001:db8::1", syscall.EMFILE), false, returned, false},
		{wrap(&net.DNSError{Err: "dial udp 127.0.0.53:53: socket: too many open files", Name: "x"}), false, returned,
			false},
		{wrap(&net.DNSError{Err: "no such host", Name: "x", IsNotFound: true}), false, failed, true},
		{wrap(errors.New("context canceled")), true, cutShort, false},
	} {
		got := explain(test.err, time.Second, test.stopping)
		if got.verdict != test.verdict || got.host != test.host || got.text == "" || got.status != 0 {
			t.Errorf("%v: %+v", test.err, got)
		}
		if strings.Contains(got.text, "s3cr3t") {
			t.Errorf("%v: tells the URL: %s", test.err, got.text)
		}
	}
}

// A cut in a host's answer leaves no part of a secret.
func TestSecretsAreHiddenWhereAnswersAreCut(t *testing.T) {
	t.Parallel()
	const secret = "0123456789abcdef0123456789abcdef"
	e := &Endpoint{secrets: []string{secret}}
	for before := shownAnswer - len(secret) - 2; before <= shownAnswer; before++ {
		body := strings.Repeat("x", before) + secret + strings.Repeat("y", shownAnswer)
		got := e.read(&http.Response{StatusCode: http.StatusBadRequest, Body: io.NopCloser(strings.NewReader(body))},
			func() {})
		if strings.Contains(got, secret[:1]) || len(got) > shownAnswer || !strings.HasPrefix(got, body[:before]) {
			t.Errorf("after %d bytes: %s", before, got[before-1:])
		}
	}
}
