package notify_test

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
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/notify"
	"github.com/timerd-io/timerd/schedule"
)

// intakeTally counts what the hooks of intakes tell.
type intakeTally struct {
	mu                                     sync.Mutex
	retried, ignored, malformed, exhausted int
}

func (c *intakeTally) hooks() notify.IntakeHooks {
	add := func(n *int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		*n++
	}
	return notify.IntakeHooks{
		Retried: func(keys.Key, int64) { add(&c.retried) },
		Ignored: func() { add(&c.ignored) },
		Buried: func(class notify.DeadClass) {
			if class == notify.DeadExhausted {
				add(&c.exhausted)
			} else {
				add(&c.malformed)
			}
		},
	}
}

func (c *intakeTally) counts() (retried, ignored, malformed, exhausted int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.retried, c.ignored, c.malformed, c.exhausted
}

// desk is a Redis and a NATS with any number of intakes between them.
type desk struct {
	t     *testing.T
	plan  *plan
	nats  *testenv.NATSServer
	js    jetstream.JetStream // on a connection of its own
	tally intakeTally
	log   *bytes.Buffer // guarded by logMu
	logMu sync.Mutex
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{t: t, plan: newPlan(t), nats: testenv.NATS(t), log: &bytes.Buffer{}}
	d.js = d.nats.JetStream()
	if err := notify.EnsureStreams(t.Context(), d.js, notify.Streams{}); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *desk) Write(p []byte) (int, error) {
	d.logMu.Lock()
	defer d.logMu.Unlock()
	return d.log.Write(p)
}

// logged counts the lines of the log that hold a text.
func (d *desk) logged(text string) int {
	d.logMu.Lock()
	defer d.logMu.Unlock()
	return strings.Count(d.log.String(), text)
}

// clerk is an intake at work.
type clerk struct {
	*notify.Intake
	t      *testing.T
	nc     *nats.Conn
	cancel context.CancelFunc
	ended  chan struct{}
}

// open starts an intake with a policy for all timers. configure may change it first.
func (d *desk) open(policy string, configure func(*notify.Intake)) *clerk {
	d.t.Helper()
	return d.openAt(d.nats.URL(), d.plan, policy, configure)
}

func (d *desk) openAt(url string, retrier notify.Retrier, policy string, configure func(*notify.Intake)) *clerk {
	d.t.Helper()
	nc, err := nats.Connect(url, append(notify.ConnOptions(), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectJitter(0, 0))...)
	if err != nil {
		d.t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		d.t.Fatal(err)
	}
	policies, err := notify.ParsePolicies("*=" + policy)
	if err != nil {
		d.t.Fatal(err)
	}
	c := &clerk{Intake: notify.NewIntake(js, retrier), t: d.t, nc: nc, ended: make(chan struct{})}
	c.Policies = policies
	c.AckWait = time.Second
	c.Logger = slog.New(slog.NewTextHandler(d, &slog.HandlerOptions{Level: slog.LevelDebug}))
	c.Hooks = d.tally.hooks()
	if configure != nil {
		configure(c.Intake)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	go func() {
		defer close(c.ended)
		c.Run(ctx)
	}()
	d.t.Cleanup(func() {
		c.stop()
		if d.t.Failed() {
			d.logMu.Lock()
			defer d.logMu.Unlock()
			d.t.Logf("log:\n%s", d.log)
		}
	})
	return c
}

// stop ends the intake as SIGTERM does, and kill as a crash: what it still does never
// reaches NATS.
func (c *clerk) stop() {
	c.t.Helper()
	c.cancel()
	select {
	case <-c.ended:
	case <-time.After(patience):
		c.t.Error("Run does not end")
	}
	c.nc.Close()
}

func (c *clerk) kill() {
	c.t.Helper()
	c.nc.Close()
	c.stop()
}

// healthy waits until Healthy returns an error with this text, or nil for "".
func (c *clerk) healthy(within time.Duration, text string) {
	c.t.Helper()
	testenv.Eventually(c.t, within, func() error {
		err := c.Healthy()
		if text == "" && err == nil || text != "" && err != nil && strings.Contains(err.Error(), text) {
			return nil
		}
		return errors.Join(errors.New("it says"), err)
	}, "health "+text)
}

const (
	retrySubject = "timers.retry.app1.trans.notice"
	deadSubject  = "timers.dead.app1.trans.notice"
)

// fired returns an event as timerd publishes it.
func fired(id string, attempt int, data []byte) event.Event {
	k := keys.Key{App: "app1", Module: "trans", Type: "notice", ID: id}
	due := time.Now().Add(-time.Second).Truncate(time.Millisecond).UTC()
	return event.Event{
		ID: keys.EventID(k.String(), due.UnixMilli(), attempt), Type: event.TypeFired, Key: k, Time: due, Due: due,
		Attempt: attempt, MaxAttempts: 16, Trigger: "deadline", Data: data,
	}
}

// request publishes a retry request. Headers are name and value in turn.
func (d *desk) request(subject string, data []byte, headers ...string) {
	d.t.Helper()
	msg := nats.NewMsg(subject)
	msg.Data = data
	for i := 0; i < len(headers); i += 2 {
		msg.Header[headers[i]] = append(msg.Header[headers[i]], headers[i+1])
	}
	if _, err := d.js.PublishMsg(d.t.Context(), msg); err != nil {
		d.t.Fatal(err)
	}
}

// empty waits until every request is carried out and acknowledged.
func (d *desk) empty() {
	d.t.Helper()
	testenv.Eventually(d.t, patience, func() error {
		stream, err := d.js.Stream(d.t.Context(), "TIMERS_RETRY")
		if err == nil && stream.CachedInfo().State.Msgs > 0 {
			err = fmt.Errorf("%d requests are left", stream.CachedInfo().State.Msgs)
		}
		return err
	}, "an empty TIMERS_RETRY")
}

// pending returns the pending timers by key; those that wait beside another one are
// not among them.
func (d *desk) pending() map[string]schedule.Pending {
	d.t.Helper()
	all := map[string]schedule.Pending{}
	err := d.plan.List(d.t.Context(), keys.Namespace{}, func(p schedule.Pending) bool {
		all[p.Key.String()] = p
		return true
	})
	if err != nil {
		d.t.Fatal(err)
	}
	return all
}

// timers returns how many timers are pending and how many firing.
func (d *desk) timers() (pending, firing int64) {
	d.t.Helper()
	pending, firing, err := d.plan.Counts(d.t.Context(), keys.Single)
	if err != nil {
		d.t.Fatal(err)
	}
	return pending, firing
}

// letters waits for n dead letters and checks what holds for every one.
func (d *desk) letters(n int) []event.Event {
	d.t.Helper()
	c := testenv.Collect(d.t, d.js, "TIMERS_DEAD")
	var all []event.Event
	for _, m := range c.Wait(n, patience) {
		e, err := event.Parse(m.Data)
		if err != nil {
			d.t.Fatalf("dead letter %q: %v", m.Data, err)
		}
		if e.Type != event.TypeDead || e.DeadReason == "" || m.ID() != e.ID || m.Subject != e.Key.Subject("timers", keys.Dead) ||
			m.Header.Get("Content-Type") != event.ContentType {
			d.t.Errorf("dead letter %s with headers %v on %s", m.Data, m.Header, m.Subject)
		}
		all = append(all, e)
	}
	if dup := c.DuplicateIDs(); len(dup) > 0 {
		d.t.Errorf("stored twice: %q", dup)
	}
	return all
}

func TestIntakeSetsTheTimerAgain(t *testing.T) {
	testenv.NoLeaks(t)
	d := newDesk(t)
	d.open("10s,30s,2m", nil).healthy(patience, "")
	for attempt, delay := range []time.Duration{10 * time.Second, 30 * time.Second, 2 * time.Minute} {
		e := fired(fmt.Sprint(attempt), attempt+1, []byte(`{"order": 42}`))
		before := time.Now()
		d.request(retrySubject, e.AppendJSON(nil))
		after := time.Now()
		d.empty()
		p, ok := d.pending()[e.Key.String()]
		if !ok || p.Attempt != attempt+2 || string(p.Payload) != `{"order": 42}` {
			t.Fatalf("after attempt %d: %+v, %v", attempt+1, p, ok)
		}
		if stored := p.Due.Add(-delay); stored.Before(before.Truncate(time.Millisecond)) || stored.After(after.Add(2*time.Millisecond)) {
			t.Errorf("due %s after the request, want %s", p.Due.Sub(before), delay)
		}
		if at, err := d.plan.rdb.PExpireTime(t.Context(), e.Key.String()).Result(); err != nil || at.Milliseconds() != p.Due.UnixMilli() {
			t.Errorf("the trigger key runs out at %d, %v, want %d", at.Milliseconds(), err, p.Due.UnixMilli())
		}
	}
	e := fired("last", 4, []byte("x"))
	d.request(retrySubject, e.AppendJSON(nil), "Timer-Error", "502 from the merchant")
	letter := d.letters(1)[0]
	if letter.ID != e.ID || letter.Key != e.Key || letter.Attempt != 4 || letter.MaxAttempts != 4 || letter.DeadReason != notify.ReasonExhausted ||
		letter.LastError != "502 from the merchant" || string(letter.Data) != "x" || !letter.Due.Equal(e.Due) || letter.Trigger != "deadline" {
		t.Errorf("dead letter %+v", letter)
	}
	d.empty()
	if pending, firing := d.timers(); pending != 3 || firing != 0 {
		t.Errorf("%d pending and %d firing, want 3 and 0", pending, firing)
	}
	if retried, ignored, malformed, exhausted := d.tally.counts(); retried != 3 || ignored+malformed != 0 || exhausted != 1 {
		t.Errorf("hooks counted %d, %d, %d, %d", retried, ignored, malformed, exhausted)
	}
}
