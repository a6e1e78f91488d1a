package deliver_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/deliver"
	"github.com/timerd-io/timerd/internal/testenv"
)

// The first entry that matches an event takes it, also where namespaces overlap; it is called once.
func TestFirstMatchTakesTheEvent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	v := receive(t, nil)
	text := "endpoints:\n"
	for _, match := range []string{"pay:order:refund", "pay:*:callback", "pay:order", "*:order", "pay"} {
		text += fmt.Sprintf("- {match: '%s', url: '%s/%s', %s}\n", match, v.URL, strings.ReplaceAll(match, "*", "x"),
			local)
	}
	r.deliver(parse(t, text))
	want := map[string]string{
		"pay:order:refund:1": "/pay:order:refund", "pay:order:callback:2": "/pay:x:callback",
		"pay:order:notice:3": "/pay:order", "shop:order:notice:4": "/x:order", "pay:card:notice:5": "/pay",
	}
	for key := range want {
		r.publish(fired(key, []byte("{}")))
	}
	r.publish(fired("shop:card:notice:6", []byte("{}")))
	r.records(len(want))
	r.settled("timerd-deliver")
	got := v.requests()
	for _, q := range got {
		e, err := event.Parse(q.body)
		if err != nil || want[e.Key.String()] != q.path {
			t.Errorf("%s called with %s, %v", q.path, e.Key, err)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d calls, want %d", len(got), len(want))
	}
}

// Two of them share the work, and a stopping one finishes its calls.
func TestSharedWorkAndStop(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	v := receive(t, func(_ http.ResponseWriter, q *http.Request) {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-q.Context().Done():
		}
	})
	config := parse(t, to(v.URL))
	_, stop := r.deliver(config, func(d *deliver.Deliverer) { d.Calls = 20 })
	r.deliver(config, func(d *deliver.Deliverer) { d.Calls = 20 })
	const all = 500
	for i := range all {
		r.publish(fired(fmt.Sprintf("pay:order:callback:%d", i), []byte(urlPayload(v.URL))))
		if i == all/2 {
			go stop()
		}
	}
	r.records(all)
	r.settled("timerd-deliver")
	if n := len(v.requests()); n != all {
		t.Errorf("%d calls, want %d", n, all)
	}
}

// More hosts than there are places let their first call hang, all at once. A host that has answered before is called as
// if they were not there.
func TestLivingHostAmongStrangersThatHang(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	const living, hanging, calls, times = "127.1.0.1", 100, 64, 20
	release := make(chan struct{})
	hung := make(chan struct{}, hanging)
	v := receive(t, func(_ http.ResponseWriter, q *http.Request) {
		if strings.HasPrefix(q.Host, living) {
			return
		}
		hung <- struct{}{}
		select {
		case <-release:
		case <-q.Context().Done():
		}
	}, func(s *httptest.Server) {
		_ = s.Listener.Close()
		s.Listener = l
	})
	url := func(host string) []byte {
		return []byte(urlPayload(fmt.Sprintf("http://%s:%d/", host, l.Addr().(*net.TCPAddr).Port)))
	}
	r.deliver(parse(t, to("{data.url}", "timeout: 5m")), func(d *deliver.Deliverer) { d.Calls = calls })
	t.Cleanup(sync.OnceFunc(func() { close(release) })) // before the deliverer ends
	r.publish(fired("pay:order:callback:first", url(living)))
	r.records(1)
	for i := range hanging {
		r.publish(fired(fmt.Sprintf("pay:order:callback:dead-%d", i), url(fmt.Sprintf("127.0.0.%d", i+2))))
	}
	for range calls / 2 {
		<-hung
	}
	for i := range times {
		r.publish(fired(fmt.Sprintf("pay:order:callback:living-%d", i), url(living)))
	}
	delivered := func() error {
		n := 0
		for _, q := range v.requests() {
			if strings.HasPrefix(q.host, living) {
				n++
			}
		}
		if n < 1+times {
			return fmt.Errorf("%d calls of the living host, want %d", n, 1+times)
		}
		return nil
	}
	testenv.Eventually(t, patience, delivered, "calls of the living host")
	if n := len(v.requests()); n != 1+times+calls/2 {
		t.Errorf("%d calls, want %d: half of all places are for hosts that hang", n, 1+times+calls/2)
	}
}

// A call that takes longer than a stop may is cut short, and the event comes again; the log says so.
func TestStopCutsLongCalls(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	began := make(chan struct{}, 10)
	v := receive(t, func(_ http.ResponseWriter, q *http.Request) {
		began <- struct{}{}
		<-q.Context().Done()
	})
	_, stop := r.deliver(parse(t, to(v.URL, "timeout: 1m")))
	r.publish(fired("pay:order:callback:1", []byte("{}")))
	<-began
	watch := testenv.StartStopwatch()
	stop()
	watch.AtMost(t, 9*time.Second+patience/6, "the stop")
	record := r.records(1)["1"][0]
	if record.Result != event.ResultPostponed || record.Error != "cut short: timerd deliver stops" {
		t.Errorf("%+v", record)
	}
	m := r.retry.Wait(1, patience)[0]
	if m.Header.Get("Timer-Postpone") != "1" {
		t.Errorf("asked for with %v", m.Header)
	}
}

// A delivery for which nobody was called tells nothing about its host.
func TestNoCallSaysNothingOfTheHost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	v := receive(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	d, _ := r.deliver(parse(t, to(v.URL, "body: data")))
	for i := range 19 {
		r.publish(fired(fmt.Sprintf("pay:order:callback:%d", i), []byte("{}")))
	}
	r.records(19)
	r.publish(fired("pay:order:callback:19", nil))
	r.records(20)
	r.publish(fired("pay:order:callback:20", []byte("{}")))
	r.records(21)
	if n := d.OpenCircuits(); n != 1 {
		t.Errorf("%d open circuits after 20 failures in a row", n)
	}
}

// A log that is gone is made again. While it cannot be, deliveries go on after a while, and are counted.
func TestLogIsMadeAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	v := receive(t, nil)
	r.deliver(parse(t, to(v.URL)))
	r.deliverOne("1", "{}")
	if err := r.js.DeleteStream(t.Context(), "TIMERS_DELIVERY"); err != nil {
		t.Fatal(err)
	}
	r.publish(fired("pay:order:callback:2", []byte("{}")))
	testenv.Eventually(t, patience, func() error {
		stream, err := r.js.Stream(t.Context(), "TIMERS_DELIVERY")
		if err == nil && stream.CachedInfo().State.Msgs != 1 {
			err = errors.New("no message")
		}
		return err
	}, "a new log")
}

func TestLogThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	v := receive(t, nil)
	unlogged := make(chan struct{}, 10)
	d, _ := r.deliver(parse(t, to(v.URL)), func(d *deliver.Deliverer) {
		d.SetLogPatience(3 * time.Second)
		d.EnsureLog = func(context.Context) error { return errors.New("not allowed") }
		d.OnUnlogged = func() { unlogged <- struct{}{} }
	})
	if err := r.js.DeleteStream(t.Context(), "TIMERS_DELIVERY"); err != nil {
		t.Fatal(err)
	}
	r.publish(fired("pay:order:callback:1", []byte("{}")))
	select {
	case <-unlogged:
	case <-time.After(patience):
		t.Fatal("a delivery waits for its log for ever")
	}
	d.SetLogPatience(time.Hour)
	r.publish(fired("pay:order:callback:2", []byte("{}")))
	select {
	case <-unlogged:
	case <-time.After(patience):
		t.Fatal("the next one waits too")
	}
	r.settled("timerd-deliver")
	if len(v.requests()) != 2 {
		t.Errorf("%d calls", len(v.requests()))
	}
}

// A record that went with a connection is written once there is a new one.
func TestRecordLostWithItsConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	proxy := testenv.NewProxy(t, r.nats.Addr())
	js := r.nats.JetStream(testenv.Through(proxy))
	called := make(chan uint64, 10)
	v := receive(t, func(http.ResponseWriter, *http.Request) {
		proxy.Blackhole()
		called <- js.Conn().Stats().OutMsgs
	})
	r.deliverOver(js, parse(t, to(v.URL)), func(d *deliver.Deliverer) {
		d.SetLogPatience(time.Hour)
		d.SetLogTry(time.Hour)
	})
	r.publish(fired("pay:order:callback:1", []byte("{}")))
	before := <-called
	testenv.Eventually(t, patience, func() bool { return js.Conn().Stats().OutMsgs > before }, "the record on its way")
	proxy.Cut()
	proxy.Heal()
	if record := r.records(1)["1"]; len(record) != 1 || record[0].Status != http.StatusOK {
		t.Errorf("records: %+v", record)
	}
}

// A restart of NATS in the middle loses nothing.
func TestNATSRestarts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	v := receive(t, nil)
	r.deliver(parse(t, to("{data.url}", "concurrency: 300")))
	const all = 300
	for i := range all {
		r.publish(fired(fmt.Sprintf("pay:order:callback:%d", i), []byte(urlPayload(v.URL))))
		if i == all/2 {
			r.nats.Restart()
		}
	}
	testenv.Eventually(t, patience, func() error {
		seen := map[string]bool{}
		for _, q := range v.requests() {
			seen[q.header.Get("Webhook-Id")] = true
		}
		if len(seen) < all {
			return fmt.Errorf("%d of %d delivered", len(seen), all)
		}
		return nil
	}, "deliveries")
	r.settled("timerd-deliver")
}

// Nothing that is published, logged or sent tells a secret, also where a receiver sends it back.
func TestSecretsAreNowhere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	echo := receive(t, func(w http.ResponseWriter, q *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, "I got %v and know %s", q.Header, secretA)
		fmt.Fprint(w, strings.TrimPrefix(q.Header.Get("Authorization"), "Bearer "))
	})
	d, _ := r.deliver(parse(t, to("{data.url}", "secrets: [env:A, env:B]", "hosts: [127.0.0.1, no.such.host.invalid]",
		"headers: {Authorization: env:TOKEN}")))
	r.publish(fired("pay:order:callback:1", []byte(urlPayload(echo.URL))),
		attempt(fired("pay:order:callback:2", []byte(urlPayload(echo.URL))), 3))
	r.publish(fired("pay:order:callback:3", []byte(urlPayload("http://no.such.host.invalid/"))),
		fired("pay:order:callback:4", []byte(urlPayload("ftp://x"))))
	records := r.records(4)
	r.settled("timerd-deliver")
	if got := echo.requests()[0].header.Get("Authorization"); got != "Bearer t0ps3cret" {
		t.Errorf("Authorization %q", got)
	}
	if !strings.Contains(records["1"][0].Error, "[secret]") {
		t.Errorf("record %+v, want the answer without secrets", records["1"][0])
	}
	all := r.out.String() + fmt.Sprintf("%+v %v", records, d.Healthy())
	for _, c := range []*testenv.Collector{r.retry, r.dead, r.log} {
		for _, m := range c.All() {
			all += fmt.Sprintf("%v %s\n", m.Header, m.Data)
		}
	}
	for _, q := range echo.requests() {
		all += string(q.body)
	}
	for _, secret := range []string{strings.TrimPrefix(secretA, "whsec_"), strings.TrimPrefix(secretB, "whsec_"),
		"t0ps3cret"} {
		testenv.Lacks(t, all, secret)
	}
}
