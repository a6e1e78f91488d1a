package deliver_test

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/test/system"
)

func accept(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }

// SIGHUP: a file with faults changes nothing, a good one counts as soon as the group goes by it.
func TestDeliverReload(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Start()
	before, after := system.NewMerchant(t, accept), system.NewMerchant(t, accept)
	file := system.Webhooks(t, "pay "+before.URL)
	p := s.Deliverer(file)
	set := func(id int) {
		s.Do("FCALL", "timer_set", 1, fmt.Sprintf("pay:order:callback:%d", id), "{}", "PX", 20)
	}
	total := func(m *system.Merchant, want int) {
		t.Helper()
		testenv.Eventually(t, system.Patience, func() error {
			if _, n := m.Seen(); n != want {
				return fmt.Errorf("%d calls, want %d", n, want)
			}
			return nil
		}, "calls")
	}
	set(1)
	total(before, 1)
	if err := os.WriteFile(file, []byte("endpoints: [{match: pay, url: 'ftp://x', secrets: [whsec_s3cr3t]}]"),
		0o600); err != nil {
		t.Fatal(err)
	}
	p.Signal(syscall.SIGHUP)
	p.Log.Wait(t, system.Patience, "keeping the old endpoints")
	testenv.Lacks(t, p.Log.String(), "whsec_s3cr3t")
	set(2)
	total(before, 2)
	system.WriteWebhooks(t, file, "pay "+after.URL)
	p.Signal(syscall.SIGHUP)
	p.Log.Wait(t, system.Patience, "endpoints reloaded")
	testenv.Eventually(t, system.Patience, func() error {
		if n := strings.Count(p.Log.String(), "events are taken by this file"); n < 2 {
			return fmt.Errorf("%d files were gone by", n)
		}
		return nil
	}, "the group to go by the new file")
	set(3)
	total(after, 1)
	total(before, 2)
	p.Stop()
}

// Processes are killed while they deliver: every event arrives, and so does the record of the call that delivered it.
func TestDeliverKilled(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Start("TIMERD_RETRY=*=100ms,100ms,100ms,100ms,100ms,100ms,100ms,100ms")
	var n atomic.Int64
	m := system.NewMerchant(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(30 * time.Millisecond):
		case <-r.Context().Done():
		}
		if n.Add(1)%7 == 0 {
			w.WriteHeader(http.StatusBadGateway)
		}
	})
	file := system.Webhooks(t, "pay {data.url}")
	workers := []*system.Daemon{s.Deliverer(file), s.Deliverer(file)}
	const all = 1500
	for i := range all {
		s.Do("FCALL", "timer_set", 1, fmt.Sprintf("pay:order:callback:%d", i), `{"url":"`+m.URL+`"}`, "PX", 10)
		if i%500 == 250 {
			victim := i / 500 % 2
			workers[victim].Kill()
			workers[victim] = s.Deliverer(file)
		}
	}
	log := testenv.Collect(t, s.JS, "TIMERS_DELIVERY")
	log.WaitFunc(2*system.Patience, func(messages []testenv.Message) error {
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
	byID, total := m.Seen()
	if len(byID) != all {
		t.Errorf("%d of %d delivered", len(byID), all)
	}
	t.Logf("%d calls for %d events, %d records", total, all, log.Len())
	for _, w := range workers {
		w.Stop()
	}
}

// While a circuit is open its host sees one probe, no attempt is used up, and everything arrives once it answers again.
func TestDeliverToADeadHost(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Start("TIMERD_RETRY=*=1s,1s,1s")
	var dead, calls atomic.Int64
	dead.Store(1)
	m := system.NewMerchant(t, func(w http.ResponseWriter, _ *http.Request) {
		if dead.Load() == 1 {
			calls.Add(1)
			w.WriteHeader(http.StatusBadGateway)
		}
	})
	living := system.NewMerchant(t, accept)
	p := s.Deliverer(system.Webhooks(t, "pay {data.url}"))
	const all = 200
	set := func(from, to int, url string) {
		for i := from; i < to; i++ {
			s.Do("FCALL", "timer_set", 1, fmt.Sprintf("pay:order:callback:%d", i), `{"url":"`+url+`"}`, "PX", 10)
		}
	}
	set(0, all, m.URL)
	p.Log.Wait(t, system.Patience, "host fails: postponing its deliveries")
	set(all, 2*all, m.URL)
	set(2*all, 3*all, living.URL)
	testenv.Eventually(t, system.Patience, func() error {
		if _, n := living.Seen(); n != all {
			return fmt.Errorf("%d of %d arrived", n, all)
		}
		return nil
	}, "deliveries to the living host")
	before := calls.Load()
	if before > 20+64 { // calls that were running when it opened
		t.Errorf("%d calls of the dead host", before)
	}
	dead.Store(0)
	testenv.Eventually(t, 2*system.Patience, func() error {
		if byID, _ := m.Seen(); len(byID) != 2*all {
			return fmt.Errorf("%d of %d tried", len(byID), 2*all)
		}
		return nil
	}, "deliveries after the recovery")
	log := testenv.Collect(t, s.JS, "TIMERS_DELIVERY")
	log.WaitFunc(system.Patience, func(messages []testenv.Message) error {
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
		if failures != 20 { // the failures that opened the circuit; failures while it was open use up no attempt
			t.Errorf("%d attempts were used up, want 20", failures)
		}
		for subject, attempt := range delivered {
			if attempt != 1+used[subject] {
				t.Errorf("%s: delivered by attempt %d after %d failures", subject, attempt, used[subject])
			}
		}
		return nil
	})
	p.Stop()
}

func TestDeliverCheck(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Env["WEBHOOK_SECRET"] = system.WebhookSecret
	file := system.Webhooks(t, "pay https://hooks.example.com/a?token=s3cr3t", "shop {data.url}")
	out := s.OK("deliver", "--config", file, "--check")
	if !strings.Contains(out, "https://hooks.example.com") || !strings.Contains(out, "{data.url}") {
		t.Errorf("check says\n%s", out)
	}
	testenv.Lacks(t, out, system.Secret)
	for _, test := range []struct {
		args []string
		text string
		want string
	}{
		{[]string{"deliver"}, "", "--config is missing"},
		{[]string{"deliver", "--config", file, "--calls", "0"}, "", "--calls=0"},
		{[]string{"deliver", "--config", file, "--check"}, "endpoints: [{url: 'https://x', rate: 5}]",
			"line 1: match is missing\n"},
		{[]string{"deliver", "--config", file}, "endpoints: [{url: 'https://x', rate: 5}]",
			"line 1: rate: \"5\": want a number of calls in a time"},
		{[]string{"deliver", "--config", file + ".none", "--check"}, "", "no such file"},
	} {
		if test.text != "" {
			if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		code, out, errs := s.Run("", test.args...)
		if code != 2 || out != "" || !strings.Contains(errs, test.want) {
			t.Errorf("%v: exit code %d\n%s%s, want %q", test.args, code, out, errs, test.want)
		}
	}
}

// The rights that docs/webhooks.md names are enough.
func TestDeliverRights(t *testing.T) {
	t.Parallel()
	rights := &server.Permissions{
		Publish: &server.SubjectPermission{Allow: []string{
			"$JS.API.INFO", "$JS.API.STREAM.INFO.TIMERS", "$JS.API.STREAM.*.TIMERS_DELIVERY",
			"$JS.API.CONSUMER.*.TIMERS.>", "$JS.API.CONSUMER.MSG.NEXT.TIMERS.>", "$JS.ACK.TIMERS.>",
			"timers.retry.>", "timers.dead.>", "timers.delivery.>",
		}},
		Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
	}
	s := &system.System{T: t, Redis: testenv.Redis(t)}
	s.NATS = testenv.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "admin", Password: "a"},
			{Username: "deliver", Password: "d", Permissions: rights}}
	})
	s.RDB, s.JS = s.Redis.Client(), s.NATS.JetStream(nats.UserInfo("admin", "a"))
	s.Env = map[string]string{
		"TIMERD_REDIS_URL": s.Redis.URL(0), "TIMERD_NAMESPACES": "*", "TIMERD_RETRY": "*=50ms",
		"TIMERD_NATS_URL": strings.Replace(s.NATS.URL(), "nats://", "nats://admin:a@", 1),
	}
	s.Start()
	var n atomic.Int64
	m := system.NewMerchant(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(map[int64]int{1: http.StatusOK, 2: http.StatusBadGateway, 3: http.StatusOK,
			4: http.StatusGone}[n.Add(1)])
	})
	p := s.Deliverer(system.Webhooks(t, "pay {data.url}"), "TIMERD_NATS_URL="+strings.Replace(s.NATS.URL(), "nats://",
		"nats://deliver:d@", 1))
	log := testenv.Collect(t, s.JS, "TIMERS_DELIVERY")
	for i, records := range []int{1, 3, 4} {
		s.Do("FCALL", "timer_set", 1, fmt.Sprintf("pay:order:callback:%d", i), `{"url":"`+m.URL+`"}`, "PX", 20)
		log.Wait(records, system.Patience)
	}
	testenv.Collect(t, s.JS, "TIMERS_DEAD").Wait(1, system.Patience)
	if said := p.Log.String(); strings.Contains(said, "ermission") {
		t.Errorf("refused:\n%s", said)
	}
	p.Stop()
}
