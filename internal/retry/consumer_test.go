package retry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/retry"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// hookCounter counts the calls of consumers' hooks.
type hookCounter struct {
	mu                                     sync.Mutex
	retried, ignored, malformed, exhausted int
}

func (c *hookCounter) attach(to *retry.Consumer) {
	add := func(n *int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		*n++
	}
	to.OnRetried = func() { add(&c.retried) }
	to.OnIgnored = func() { add(&c.ignored) }
	to.OnBuried = func(class retry.DeadClass) {
		if class == retry.DeadExhausted {
			add(&c.exhausted)
		} else {
			add(&c.malformed)
		}
	}
}

func (c *hookCounter) counts() (retried, ignored, malformed, exhausted int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.retried, c.ignored, c.malformed, c.exhausted
}

// fixture is a Redis and a NATS with any number of retry consumers between them.
type fixture struct {
	t        *testing.T
	schedule *testenv.Schedule
	nats     *testenv.NATSServer
	js       jetstream.JetStream // on a connection of its own
	hooks    hookCounter
	log      *bytes.Buffer // guarded by logMu
	logMu    sync.Mutex
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, schedule: testenv.NewSchedule(t), nats: testenv.NATS(t), log: &bytes.Buffer{}}
	f.js = f.nats.JetStream()
	if err := streams.Ensure(t.Context(), f.js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) Write(p []byte) (int, error) {
	f.logMu.Lock()
	defer f.logMu.Unlock()
	return f.log.Write(p)
}

// logged counts the lines of the log that hold a text.
func (f *fixture) logged(text string) int {
	f.logMu.Lock()
	defer f.logMu.Unlock()
	return strings.Count(f.log.String(), text)
}

// running is a retry consumer at work.
type running struct {
	*retry.Consumer
	t      *testing.T
	nc     *nats.Conn
	cancel context.CancelFunc
	ended  chan struct{}
}

// start runs a retry consumer with a policy for all timers. configure may change it first.
func (f *fixture) start(rule string, configure func(*retry.Consumer)) *running {
	f.t.Helper()
	return f.startAt(f.nats.URL(), f.schedule, rule, configure)
}

func (f *fixture) startAt(url string, retrier retry.Retrier, rule string, configure func(*retry.Consumer)) *running {
	f.t.Helper()
	nc, err := nats.Connect(url, append(connect.NATSOptions(), nats.ReconnectWait(10*time.Millisecond),
		nats.ReconnectJitter(0, 0))...)
	if err != nil {
		f.t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		f.t.Fatal(err)
	}
	policies, err := policy.ParseRetries("*=" + rule)
	if err != nil {
		f.t.Fatal(err)
	}
	c := &running{Consumer: retry.NewConsumer(js, retrier), t: f.t, nc: nc, ended: make(chan struct{})}
	c.Policies = policies
	c.AckWait = patience // no test waits for it but those of mortal
	c.Logger = slog.New(slog.NewTextHandler(f, &slog.HandlerOptions{Level: slog.LevelDebug}))
	f.hooks.attach(c.Consumer)
	if configure != nil {
		configure(c.Consumer)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	go func() {
		defer close(c.ended)
		c.Run(ctx)
	}()
	f.t.Cleanup(func() {
		c.stop()
		if f.t.Failed() {
			f.logMu.Lock()
			defer f.logMu.Unlock()
			f.t.Logf("log:\n%s", f.log)
		}
	})
	return c
}

// mortal configures a consumer of a test in which some die: their fetched requests come again soon.
func mortal(c *retry.Consumer) { c.AckWait = time.Second }

// stop ends the consumer as SIGTERM does, and kill like a crash: its further work never reaches NATS.
func (c *running) stop() {
	c.t.Helper()
	c.cancel()
	select {
	case <-c.ended:
	case <-time.After(2 * patience):
		c.t.Error("Run does not end")
	}
	c.nc.Close()
}

func (c *running) kill() {
	c.t.Helper()
	c.nc.Close()
	c.stop()
}

// waitHealth waits until Healthy returns an error with this text, or nil for "". A stalled machine has more time.
func (c *running) waitHealth(within time.Duration, text string) {
	c.t.Helper()
	testenv.Promptly(c.t, within, func() error {
		err := c.Healthy()
		if text == "" && err == nil || text != "" && err != nil && strings.Contains(err.Error(), text) {
			return nil
		}
		return errors.Join(errors.New("it says"), err)
	}, "health "+text)
}

const (
	patience     = time.Minute
	lease        = 10 * time.Minute
	retrySubject = "timers.retry.app1.trans.notice"
	deadSubject  = "timers.dead.app1.trans.notice"
)

// firedEvent returns an event as timerd publishes it.
func firedEvent(id string, attempt int, data []byte) event.Event {
	k := keys.Key{App: "app1", Module: "trans", Type: "notice", ID: id}
	due := time.Now().Add(-time.Second).Truncate(time.Millisecond).UTC()
	return event.Event{
		ID: keys.EventID(k.String(), due.UnixMilli(), attempt), Type: event.TypeFired, Key: k, Time: due, Due: due,
		Attempt: attempt, MaxAttempts: 16, Trigger: "deadline", Data: data,
	}
}

// request publishes a retry request. Headers are name and value in turn.
func (f *fixture) request(subject string, data []byte, headers ...string) {
	f.t.Helper()
	msg := nats.NewMsg(subject)
	msg.Data = data
	for i := 0; i < len(headers); i += 2 {
		msg.Header[headers[i]] = append(msg.Header[headers[i]], headers[i+1])
	}
	if _, err := f.js.PublishMsg(f.t.Context(), msg); err != nil {
		f.t.Fatal(err)
	}
}

// waitEmpty waits until every request is carried out and acknowledged.
func (f *fixture) waitEmpty() {
	f.t.Helper()
	testenv.Eventually(f.t, patience, func() error {
		stream, err := f.js.Stream(f.t.Context(), "TIMERS_RETRY")
		if err == nil && stream.CachedInfo().State.Msgs > 0 {
			err = fmt.Errorf("%d requests are left", stream.CachedInfo().State.Msgs)
		}
		return err
	}, "an empty TIMERS_RETRY")
}

// pending returns the pending timers by key; timers that wait beside another one are left out.
func (f *fixture) pending() map[string]query.Timer {
	f.t.Helper()
	all := map[string]query.Timer{}
	err := query.Pages(f.t.Context(), f.schedule.Schedule, query.Query{}, func(p query.Page) bool {
		for _, timer := range p.Timers {
			if !timer.Beside {
				all[timer.Key.String()] = timer
			}
		}
		return true
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return all
}

// letters waits for n dead letters and checks the rules for every one.
func (f *fixture) letters(n int) []event.Event {
	f.t.Helper()
	c := testenv.Collect(f.t, f.js, "TIMERS_DEAD")
	var all []event.Event
	for _, m := range c.Wait(n, patience) {
		e, err := event.Parse(m.Data)
		if err != nil {
			f.t.Fatalf("dead letter %q: %v", m.Data, err)
		}
		if e.Type != event.TypeDead || e.DeadReason == "" || m.ID() != e.ID ||
			m.Subject != e.Key.Subject("timers", keys.Dead) ||
			m.Header.Get("Content-Type") != event.ContentType {
			f.t.Errorf("dead letter %s with headers %v on %s", m.Data, m.Header, m.Subject)
		}
		all = append(all, e)
	}
	if dup := c.DuplicateIDs(); len(dup) > 0 {
		f.t.Errorf("stored twice: %q", dup)
	}
	return all
}

func TestConsumerSetsTheTimerAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start("10s,30s,2m", nil).waitHealth(patience, "")
	for attempt, delay := range []time.Duration{10 * time.Second, 30 * time.Second, 2 * time.Minute} {
		e := firedEvent(fmt.Sprint(attempt), attempt+1, []byte(`{"order": 42}`))
		before := time.Now()
		f.request(retrySubject, e.AppendJSON(nil))
		after := time.Now()
		f.waitEmpty()
		p, ok := f.pending()[e.Key.String()]
		if !ok || p.Attempt != attempt+2 || string(p.Payload) != `{"order": 42}` {
			t.Fatalf("after attempt %d: %+v, %v", attempt+1, p, ok)
		}
		if stored := p.Due.Add(-delay); stored.Before(before.Truncate(time.Millisecond)) ||
			stored.After(after.Add(2*time.Millisecond)) {
			t.Errorf("due %s after the request, want %s", p.Due.Sub(before), delay)
		}
		if at, err := f.schedule.Client.PExpireTime(t.Context(), e.Key.String()).Result(); err != nil ||
			at.Milliseconds() != p.Due.UnixMilli() {
			t.Errorf("the trigger key runs out at %d, %v, want %d", at.Milliseconds(), err, p.Due.UnixMilli())
		}
	}
	e := firedEvent("last", 4, []byte("x"))
	f.request(retrySubject, e.AppendJSON(nil), "Timer-Error", "502 from the merchant")
	letter := f.letters(1)[0]
	if letter.ID != e.ID || letter.Key != e.Key || letter.Attempt != 4 || letter.MaxAttempts != 4 ||
		letter.DeadReason != event.ReasonExhausted ||
		letter.LastError != "502 from the merchant" || string(letter.Data) != "x" || !letter.Due.Equal(e.Due) ||
		letter.Trigger != "deadline" {
		t.Errorf("dead letter %+v", letter)
	}
	f.waitEmpty()
	if pending, firing := f.schedule.Count(); pending != 3 || firing != 0 {
		t.Errorf("%d pending and %d firing, want 3 and 0", pending, firing)
	}
	if retried, ignored, malformed, exhausted := f.hooks.counts(); retried != 3 || ignored+malformed != 0 ||
		exhausted != 1 {
		t.Errorf("hooks counted %d, %d, %d, %d", retried, ignored, malformed, exhausted)
	}
}
