package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	exampleenv "github.com/timerd-io/timerd/examples/internal/testenv"
	"github.com/timerd-io/timerd/internal/testenv"
)

const (
	// patience bounds the waits of these tests on a slow machine.
	patience = 30 * time.Second
	// latest is how much later than wanted an attempt may come on such a machine,
	// with hundreds of others due in the same moment.
	latest = 10 * time.Second
	// first is the delay of the first callback.
	first = 200 * time.Millisecond
	// merchantTime is what a merchant has to answer: too long for a healthy one to
	// miss it here, even under the race detector.
	merchantTime = 3 * time.Second
)

// shop is a timerd, its merchants and a journal of what becomes of payments.
type shop struct {
	t         *testing.T
	timers    *client.Timers
	js        jetstream.JetStream
	merchants *merchants
	delays    []time.Duration
	journal   *journal
}

// follow pays orders at merchants that react so, and waits until all are settled.
func follow(t *testing.T, delays []time.Duration, payments []payment, reactions func(merchant, order string) []reaction) *shop {
	t.Helper()
	s := exampleenv.Servers(t, retryVariable(delays))
	m, err := openMerchants(reactions)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.close(); err != nil {
			t.Error(err)
		}
	})
	send := newSender(m.endpoints("shop"), merchantTime)
	t.Cleanup(send.http.CloseIdleConnections)
	j := newJournal(send, delays, payments, first, io.Discard)
	consumer := client.NewConsumer(s.JetStream)
	consumer.Concurrency = 64
	consumer.Logger = slog.New(slog.DiscardHandler)
	timers := client.New(s.Redis)
	if err := j.follow(t.Context(), timers, consumer, payments, first); err != nil {
		t.Error(err)
	}
	return &shop{t: t, timers: timers, js: s.JetStream, merchants: m, delays: delays, journal: j}
}

// state returns how many messages a stream holds, and how many it has ever had.
func (s *shop) state(stream string) (now, ever uint64) {
	s.t.Helper()
	found, err := s.js.Stream(s.t.Context(), stream)
	if err != nil {
		s.t.Fatal(err)
	}
	state := found.CachedInfo().State
	return state.Msgs, state.LastSeq
}

// quiet waits until no timer and no retry request is left, after which nothing can
// call a merchant any more.
func (s *shop) quiet(payments []payment) {
	s.t.Helper()
	testenv.Eventually(s.t, patience, func() error {
		if now, _ := s.state("TIMERS_RETRY"); now > 0 {
			return fmt.Errorf("%d retry requests", now)
		}
		return nil
	}, "every retry to be set")
	for _, p := range payments {
		if timer, found, err := s.timers.Get(s.t.Context(), p.key()); err != nil || found {
			s.t.Errorf("a timer is left: %s, attempt %d, %v", p.key(), timer.Attempt, err)
		}
	}
	consumer, err := s.js.Consumer(s.t.Context(), client.DefaultStream, "timerd~pay~order~callback")
	if err != nil {
		s.t.Fatal(err)
	}
	if info := consumer.CachedInfo(); info.NumAckPending > 0 || info.NumPending > 0 {
		s.t.Errorf("%d events unacknowledged, %d undelivered", info.NumAckPending, info.NumPending)
	}
}

// checkDelays compares an order's attempts with the reactions they met.
func (s *shop) checkDelays(r *record, met []reaction) {
	s.t.Helper()
	if len(r.attempts) != len(met) {
		s.t.Errorf("order %s: %d attempts, want %d: %v", r.order, len(r.attempts), len(met), r.attempts)
		return
	}
	for i, a := range r.attempts {
		want := first
		if i > 0 {
			want = s.delays[i-1]
			if met[i-1] == throttle || met[i-1] == busy {
				want = pauseAsked
			}
		}
		if a.number != i+1 || a.wanted != want {
			s.t.Errorf("order %s, call %d: attempt %d with delay %v wanted, want %v", r.order, i+1, a.number, a.wanted, want)
		}
		if a.had < want || a.had > want+latest || a.lateness < 0 || a.lateness > latest {
			s.t.Errorf("order %s, attempt %d: came after %v, want %v; %v late", r.order, a.number, a.had, want, a.lateness)
		}
	}
}

// called returns the reactions to the calls for an order so far.
func (m *merchants) called(order string) []reaction {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.calls[webhookIDPrefix+order])
}

// unsigned returns how many calls had no valid signature.
func (m *merchants) unsigned() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.forged
}

func pay(n int) []payment {
	payments := make([]payment, n)
	for i := range payments {
		payments[i] = payment{Order: fmt.Sprint(i), Merchant: "shop", Amount: int64(i), Currency: "EUR", PaidAt: time.Now().UTC()}
	}
	return payments
}

func wechatpay(t *testing.T, factor int) []time.Duration {
	t.Helper()
	delays, err := shortened(schedule, factor)
	if err != nil {
		t.Fatal(err)
	}
	return delays
}

// A third of a thousand merchants fail 1 to 4 times, in every way there is.
func TestThousandOrders(t *testing.T) {
	testenv.NoLeaks(t)
	failures := []reaction{fails, hangs, closes, throttle, busy}
	payments := pay(1000)
	plans := make(map[string][]reaction, len(payments))
	retries := 0
	for i, p := range payments {
		var plan []reaction
		if i%3 == 0 {
			for k := range 1 + i/3%4 {
				plan = append(plan, failures[(i/12+k)%len(failures)])
			}
		}
		retries += len(plan)
		plans[p.Order] = append(plan, accepts)
	}
	s := follow(t, wechatpay(t, 100), payments, func(_, order string) []reaction { return plans[order] })
	s.quiet(payments)

	for _, r := range s.journal.orders {
		if r.result != "delivered" {
			t.Errorf("order %s: %q, want delivered", r.order, r.result)
		}
		s.checkDelays(r, plans[r.order])
		if calls := s.merchants.called(r.order); !slices.Equal(calls, plans[r.order]) {
			t.Errorf("order %s: the merchant was called %v, want %v", r.order, calls, plans[r.order])
		}
	}
	if n := s.merchants.unsigned(); n > 0 {
		t.Errorf("%d calls without a valid signature", n)
	}
	for stream, want := range map[string]int{"TIMERS": len(payments) + retries, "TIMERS_RETRY": retries, "TIMERS_DEAD": 0} {
		if _, ever := s.state(stream); ever != uint64(want) {
			t.Errorf("%s had %d messages, want %d", stream, ever, want)
		}
	}
}

func TestHopelessOrdersAreDeadLetters(t *testing.T) {
	testenv.NoLeaks(t)
	delays := []time.Duration{20 * time.Millisecond, 40 * time.Millisecond}
	payments := pay(3)
	plans := map[string][]reaction{"0": {fails, gone}, "1": {fails, closes, fails}, "2": {accepts}}
	s := follow(t, delays, payments, func(_, order string) []reaction { return plans[order] })
	s.quiet(payments)

	results := make(map[string]string)
	for _, r := range s.journal.orders {
		results[r.order] = r.result
		s.checkDelays(r, plans[r.order])
	}
	want := map[string]string{"0": "dead letter: given up", "1": "dead letter: attempts used up", "2": "delivered"}
	if !maps.Equal(results, want) {
		t.Errorf("results %v, want %v", results, want)
	}

	letters := make(map[string]event.Event)
	for _, m := range testenv.Collect(t, s.js, "TIMERS_DEAD").Wait(2, patience) {
		e, err := event.Parse(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		letters[e.Key.ID] = e
	}
	for order, want := range map[string]event.Event{
		"0": {Attempt: 2, DeadReason: "given up", LastError: "410 Gone"},
		"1": {Attempt: 3, DeadReason: "used up", LastError: "500 Internal Server Error"},
	} {
		got := letters[order]
		if got.Attempt != want.Attempt || !strings.Contains(got.DeadReason, want.DeadReason) || got.LastError != want.LastError {
			t.Errorf("order %s: dead letter of attempt %d, %q, %q; want %+v", order, got.Attempt, got.DeadReason, got.LastError, want)
		}
	}
}

func TestPolicyOfTimerdIsChecked(t *testing.T) {
	testenv.NoLeaks(t)
	s := exampleenv.Servers(t, "*=1s")
	err := run(t.Context(), []string{"-orders", "1", "-first", "10ms", "-redis", s.RedisURL, "-nats", s.NATSURL}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "TIMERD_RETRY='pay:order:callback=250ms,250ms,500ms,3s,") {
		t.Errorf("with another policy: %v", err)
	}
}

func TestProgram(t *testing.T) {
	testenv.NoLeaks(t)
	var out, errs strings.Builder
	err := run(t.Context(), []string{"-orders", "5", "-factor", "300", "-timeout", "500ms", "-timerd", exampleenv.Timerd(t)}, &out, &errs)
	if err != nil || errs.Len() > 0 {
		t.Fatalf("%v\n%s", err, &errs)
	}
	_, table, _ := strings.Cut(out.String(), "ORDER ")
	var got []string
	for line := range strings.Lines(table) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	for i, want := range []string{
		"ATTEMPTS WANTED HAD ANSWER RESULT",
		"-1 5 500ms * 500 Internal Server Error",
		"50ms * no answer within 500ms",
		"50ms * connection closed",
		"100ms * 429 Too Many Requests",
		"1s * 200 OK delivered",
		"-2 1 500ms * 200 OK delivered",
		"-3 2 500ms * 503 Service Unavailable",
		"1s * 200 OK delivered",
		"-4 2 500ms * 500 Internal Server Error",
		"50ms * 410 Gone dead letter: given up",
		"-5 5 500ms * 500 Internal Server Error",
	} {
		before, after, _ := strings.Cut(want, "*")
		if i >= len(got) || !strings.Contains(got[i], before) || !strings.HasSuffix(got[i], after) {
			t.Fatalf("line %d: want %q in\n%s", i+1, want, &out)
		}
	}
}

func TestProgramTellsWhatIsWrong(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"-orders 0", "at least 1"},
		{"-redis redis://127.0.0.1:1/0", "both Redis and NATS"},
		{"-redis redis://127.0.0.1:1/0 -nats nats://127.0.0.1:1", "connect to Redis at 127.0.0.1:1"},
		{"-timerd ./none", "make build"},
		{"-timerd go", "timerd dev ended at its start"},
	} {
		err := run(t.Context(), strings.Fields(test.args), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.args, err, test.want)
		}
	}
	if err := run(t.Context(), []string{"-no-such-flag"}, io.Discard, io.Discard); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("an unknown flag: %v", err)
	}
}
