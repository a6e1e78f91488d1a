package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
)

// webhookSecret is what the merchants of these tests know.
const webhookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// merchant is a receiver of webhooks.
type merchant struct {
	*httptest.Server
	t      testing.TB
	answer atomic.Pointer[http.HandlerFunc]

	mu    sync.Mutex
	calls map[string][]event.Event // by webhook-id
	total int
}

func newMerchant(t testing.TB, answer http.HandlerFunc) *merchant {
	t.Helper()
	webhook, err := standardwebhooks.NewWebhook(webhookSecret)
	if err != nil {
		t.Fatal(err)
	}
	m := &merchant{t: t, calls: map[string][]event.Event{}}
	m.answer.Store(&answer)
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body json.RawMessage
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			return // a process was killed in the middle
		}
		if err := webhook.Verify(body, r.Header); err != nil {
			t.Errorf("webhook: %v", err)
		}
		e, err := event.Parse(body)
		if err != nil {
			t.Errorf("webhook: %v", err)
		}
		m.mu.Lock()
		id := r.Header.Get("Webhook-Id")
		m.calls[id] = append(m.calls[id], e)
		m.total++
		m.mu.Unlock()
		(*m.answer.Load())(w, r)
	}))
	t.Cleanup(m.Close)
	return m
}

// seen returns the calls by their webhook-ids, and how many there were.
func (m *merchant) seen() (byID map[string][]event.Event, total int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	byID = map[string][]event.Event{}
	for id, all := range m.calls {
		byID[id] = append([]event.Event{}, all...)
	}
	return byID, m.total
}

func accept(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }

// webhooks writes a file of endpoints, each "match url", and returns its name.
func webhooks(t testing.TB, endpoints ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "webhooks.yaml")
	writeWebhooks(t, file, endpoints...)
	return file
}

func writeWebhooks(t testing.TB, file string, endpoints ...string) {
	t.Helper()
	text := "endpoints:\n"
	for _, endpoint := range endpoints {
		match, url, _ := strings.Cut(endpoint, " ")
		text += fmt.Sprintf("- match: '%s'\n  url: '%s'\n  secrets: [env:WEBHOOK_SECRET]\n  allow_private: [127.0.0.0/8]\n", match, url)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// deliverer starts timerd deliver and waits until it is ready.
func (s *system) deliverer(file string, settings ...string) *daemon {
	s.t.Helper()
	p := s.launchCommand([]string{"deliver", "--config", file}, append(settings, "WEBHOOK_SECRET="+webhookSecret)...)
	p.awaitReady(true)
	return p
}

// The whole way: a timer, a merchant that fails twice, the log, the commands, the metrics and the stop.
func TestDeliver(t *testing.T) {
	s := newSystem(t)
	s.start("TIMERD_RETRY=*=50ms,100ms")
	var n atomic.Int64
	m := newMerchant(t, func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1) < 3 {
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprint(w, "out of order")
		}
	})
	p := s.deliverer(webhooks(t, "pay:order:callback {data.notify_url}"))
	s.do("FCALL", "timer_set", 1, "pay:order:callback:1", `{"notify_url":"`+m.URL+`"}`, "PX", 50)
	log := testenv.Collect(t, s.js, "TIMERS_DELIVERY")
	log.Wait(3, patience)
	s.do("FCALL", "timer_set", 1, "pay:order:callback:2", `{"notify_url":"http://10.0.0.1/"}`, "PX", 50)
	var results []string
	for _, message := range log.Wait(4, patience) {
		r, err := event.ParseDelivery(message.Data)
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, fmt.Sprintf("%s %d %s %d", r.Subject, r.Attempt, r.Result, r.Status))
		if message.Subject != "timers.delivery.pay.order.callback" {
			t.Errorf("subject %s", message.Subject)
		}
	}
	want := []string{"pay:order:callback:1 1 retry 500", "pay:order:callback:1 2 retry 500", "pay:order:callback:1 3 delivered 200", "pay:order:callback:2 1 dead 0"}
	if strings.Join(results, "\n") != strings.Join(want, "\n") {
		t.Errorf("log\n%s\nwant\n%s", strings.Join(results, "\n"), strings.Join(want, "\n"))
	}
	byID, _ := m.seen()
	if len(byID) != 1 {
		t.Errorf("webhook-ids %v, want one for all attempts", byID)
	}
	for id, attempts := range byID {
		if len(attempts) != 3 || attempts[0].ID != id || attempts[1].ID == id || attempts[2].Origin != id {
			t.Errorf("%s: attempts %+v", id, attempts)
		}
	}

	testenv.SetVariables(t, s.env)
	lines := strings.Split(strings.TrimSpace(ok(t, "deliveries", "pay:order")), "\n")
	if len(lines) != 5 || !strings.Contains(lines[1], "500") || !strings.Contains(lines[1], "out of order") || !strings.Contains(lines[4], "dead") {
		t.Errorf("timerd deliveries:\n%s", strings.Join(lines, "\n"))
	}
	if out := ok(t, "deliveries", "--failed", "--json"); strings.Count(out, "\n") != 3 || strings.Contains(out, `"delivered"`) {
		t.Errorf("timerd deliveries --failed --json:\n%s", out)
	}
	if out := ok(t, "deliveries", "shop"); out != "" {
		t.Errorf("timerd deliveries shop:\n%s", out)
	}
	out := statusSays(t, exitOK, "\n  TIMERS_DELIVERY ", "\nwebhooks\n", " IN WORK ", "\n  timerd-deliver~pay~order~callback  0        0        -       ")
	if strings.Contains(out, "TIMERS_DELIVERY  ?") {
		t.Errorf("timerd status:\n%s", out)
	}
	if out := ok(t, "status", "--json"); !strings.Contains(out, `"webhooks":[{"name":"timerd-deliver~pay~order~callback","waiting":0,"working":0,"last":"`) {
		t.Errorf("timerd status --json:\n%s", out)
	}
	_, said, _ := timerd(t, "", "doctor")
	if !strings.Contains(said, "ok    webhooks          TIMERS_DELIVERY fits; consumers of timerd deliver: 1; events that wait: 0, in work: 0\n") {
		t.Errorf("timerd doctor:\n%s", said)
	}
	_, metrics, err := p.get("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`timerd_deliveries_total{result="delivered"} 1`, `timerd_deliveries_total{result="retry"} 2`, `timerd_deliveries_total{result="dead"} 1`,
		`timerd_deliveries_total{result="postponed"} 0`, "timerd_delivery_seconds_count 4", "timerd_circuit_open 0",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics without %s", want)
		}
	}
	testenv.Lacks(t, metrics+p.log.String(), strings.TrimPrefix(webhookSecret, "whsec_"))
	p.stop()
}

// SIGHUP: a file with faults changes nothing, a good one counts at once.
func TestDeliverReload(t *testing.T) {
	s := newSystem(t)
	s.start()
	before, after := newMerchant(t, accept), newMerchant(t, accept)
	file := webhooks(t, "pay "+before.URL)
	p := s.deliverer(file)
	set := func(id int) {
		s.do("FCALL", "timer_set", 1, fmt.Sprintf("pay:order:callback:%d", id), "{}", "PX", 20)
	}
	total := func(m *merchant, want int) {
		t.Helper()
		testenv.Eventually(t, patience, func() error {
			if _, n := m.seen(); n != want {
				return fmt.Errorf("%d calls, want %d", n, want)
			}
			return nil
		}, "calls")
	}
	set(1)
	total(before, 1)
	if err := os.WriteFile(file, []byte("endpoints: [{match: pay, url: 'ftp://x', secrets: [whsec_s3cr3t]}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGHUP)
	p.log.Wait(t, patience, "the endpoints stay as they are")
	testenv.Lacks(t, p.log.String(), "whsec_s3cr3t")
	set(2)
	total(before, 2)
	writeWebhooks(t, file, "pay "+after.URL)
	p.signal(syscall.SIGHUP)
	p.log.Wait(t, patience, "endpoints were read again")
	set(3)
	total(after, 1)
	total(before, 2)
	p.stop()
}

// Processes are killed while they deliver: every event arrives, and so does the record of the call that delivered it.
func TestDeliverKilled(t *testing.T) {
	s := newSystem(t)
	s.start("TIMERD_RETRY=*=100ms,100ms,100ms,100ms,100ms,100ms,100ms,100ms")
	var n atomic.Int64
	m := newMerchant(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(30 * time.Millisecond):
		case <-r.Context().Done():
		}
		if n.Add(1)%7 == 0 {
			w.WriteHeader(http.StatusBadGateway)
		}
	})
	file := webhooks(t, "pay {data.url}")
	workers := []*daemon{s.deliverer(file), s.deliverer(file)}
	const all = 1500
	for i := range all {
		s.do("FCALL", "timer_set", 1, fmt.Sprintf("pay:order:callback:%d", i), `{"url":"`+m.URL+`"}`, "PX", 10)
		if i%500 == 250 {
			victim := i / 500 % 2
			workers[victim].kill()
			workers[victim] = s.deliverer(file)
		}
	}
	log := testenv.Collect(t, s.js, "TIMERS_DELIVERY")
	log.WaitFunc(2*patience, func(messages []testenv.Message) error {
		done := map[string]bool{}
		for _, message := range messages {
			r, err := event.ParseDelivery(message.Data)
			if err != nil {
				t.Fatal(err)
			}
			if r.Result == event.ResultDelivered {
				done[r.Subject] = true
			}
		}
		if len(done) < all {
			return fmt.Errorf("%d of %d delivered, as the log has it", len(done), all)
		}
		return nil
	})
	byID, total := m.seen()
	if len(byID) != all {
		t.Errorf("%d of %d delivered", len(byID), all)
	}
	t.Logf("%d calls for %d events, %d records", total, all, log.Len())
	for _, w := range workers {
		w.stop()
	}
}

// While a circuit is open its host sees one probe, no attempt is used up, and everything arrives once it answers again.
func TestDeliverToADeadHost(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.start("TIMERD_RETRY=*=1s,1s,1s")
	var dead, calls atomic.Int64
	dead.Store(1)
	m := newMerchant(t, func(w http.ResponseWriter, _ *http.Request) {
		if dead.Load() == 1 {
			calls.Add(1)
			w.WriteHeader(http.StatusBadGateway)
		}
	})
	living := newMerchant(t, accept)
	p := s.deliverer(webhooks(t, "pay {data.url}"))
	const all = 200
	set := func(from, to int, url string) {
		for i := from; i < to; i++ {
			s.do("FCALL", "timer_set", 1, fmt.Sprintf("pay:order:callback:%d", i), `{"url":"`+url+`"}`, "PX", 10)
		}
	}
	set(0, all, m.URL)
	p.log.Wait(t, patience, "host fails, its deliveries are held back")
	set(all, 2*all, m.URL)
	set(2*all, 3*all, living.URL)
	testenv.Eventually(t, patience, func() error {
		if _, n := living.seen(); n != all {
			return fmt.Errorf("%d of %d arrived", n, all)
		}
		return nil
	}, "deliveries to the living host")
	before := calls.Load()
	if before > 20+64 { // those that were under way when it opened
		t.Errorf("%d calls of the dead host", before)
	}
	dead.Store(0)
	testenv.Eventually(t, 2*patience, func() error {
		if byID, _ := m.seen(); len(byID) != 2*all {
			return fmt.Errorf("%d of %d tried", len(byID), 2*all)
		}
		return nil
	}, "deliveries after the recovery")
	log := testenv.Collect(t, s.js, "TIMERS_DELIVERY")
	log.WaitFunc(patience, func(messages []testenv.Message) error {
		delivered, used := map[string]int{}, map[string]int{}
		for _, message := range messages {
			r, err := event.ParseDelivery(message.Data)
			if err != nil {
				t.Fatal(err)
			}
			switch r.Result {
			case event.ResultDelivered:
				delivered[r.Subject] = r.Attempt
			case event.ResultRetry:
				used[r.Subject]++
			case event.ResultDead:
				t.Fatalf("%+v", r)
			}
		}
		if len(delivered) != 3*all {
			return fmt.Errorf("%d of %d delivered", len(delivered), 3*all)
		}
		failures := 0
		for _, n := range used {
			failures += n
		}
		if failures != 20 { // those that opened the circuit; what failed while it was open used up nothing
			t.Errorf("%d attempts were used up, want 20", failures)
		}
		for subject, attempt := range delivered {
			if attempt != 1+used[subject] {
				t.Errorf("%s: delivered by attempt %d after %d failures", subject, attempt, used[subject])
			}
		}
		return nil
	})
	p.stop()
}

func TestDeliverCheck(t *testing.T) {
	testenv.SetVariables(t, nil)
	t.Setenv("WEBHOOK_SECRET", webhookSecret)
	file := webhooks(t, "pay https://hooks.example.com/a?token=s3cr3t", "shop {data.url}")
	out := ok(t, "deliver", "--config", file, "--check")
	if !strings.Contains(out, "https://hooks.example.com") || !strings.Contains(out, "{data.url}") {
		t.Errorf("check says\n%s", out)
	}
	testenv.Lacks(t, out, secret)
	for _, test := range []struct {
		args []string
		text string
		want string
	}{
		{[]string{"deliver"}, "", "--config is missing"},
		{[]string{"deliver", "--config", file, "--calls", "0"}, "", "--calls=0"},
		{[]string{"deliver", "--config", file, "--check"}, "endpoints: [{url: 'https://x', rate: 5}]", "line 1: match is missing\n"},
		{[]string{"deliver", "--config", file}, "endpoints: [{url: 'https://x', rate: 5}]", "line 1: rate: \"5\": want calls a time"},
		{[]string{"deliver", "--config", file + ".none", "--check"}, "", "no such file"},
	} {
		if test.text != "" {
			if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		code, out, errs := timerd(t, "", test.args...)
		if code != exitUsage || out != "" || !strings.Contains(errs, test.want) {
			t.Errorf("%v: exit code %d\n%s%s, want %q", test.args, code, out, errs, test.want)
		}
	}
}

// The rights that docs/webhooks.md names are enough.
func TestDeliverRights(t *testing.T) {
	t.Parallel()
	rights := &server.Permissions{
		Publish: &server.SubjectPermission{Allow: []string{
			"$JS.API.INFO", "$JS.API.STREAM.INFO.TIMERS", "$JS.API.STREAM.*.TIMERS_DELIVERY", "$JS.API.CONSUMER.*.TIMERS.>", "$JS.API.CONSUMER.MSG.NEXT.TIMERS.>", "$JS.ACK.TIMERS.>",
			"timers.retry.>", "timers.dead.>", "timers.delivery.>",
		}},
		Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
	}
	s := &system{t: t, redis: testenv.Redis(t)}
	s.nats = testenv.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "admin", Password: "a"}, {Username: "deliver", Password: "d", Permissions: rights}}
	})
	s.rdb, s.js = s.redis.Client(), s.nats.JetStream(nats.UserInfo("admin", "a"))
	s.env = map[string]string{
		"TIMERD_REDIS_URL": s.redis.URL(0), "TIMERD_NAMESPACES": "*", "TIMERD_RETRY": "*=50ms",
		"TIMERD_NATS_URL": strings.Replace(s.nats.URL(), "nats://", "nats://admin:a@", 1),
	}
	s.start()
	var n atomic.Int64
	m := newMerchant(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(map[int64]int{1: http.StatusOK, 2: http.StatusBadGateway, 3: http.StatusOK, 4: http.StatusGone}[n.Add(1)])
	})
	p := s.deliverer(webhooks(t, "pay {data.url}"), "TIMERD_NATS_URL="+strings.Replace(s.nats.URL(), "nats://", "nats://deliver:d@", 1))
	log := testenv.Collect(t, s.js, "TIMERS_DELIVERY")
	for i, records := range []int{1, 3, 4} {
		s.do("FCALL", "timer_set", 1, fmt.Sprintf("pay:order:callback:%d", i), `{"url":"`+m.URL+`"}`, "PX", 20)
		log.Wait(records, patience)
	}
	testenv.Collect(t, s.js, "TIMERS_DEAD").Wait(1, patience)
	if said := p.log.String(); strings.Contains(said, "ermission") {
		t.Errorf("refused:\n%s", said)
	}
	p.stop()
}
