package consume_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/consume"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// patience bounds every wait of these tests on a slow machine.
const patience = time.Minute

// bench is a NATS server with timerd's streams, the worker, and its requests there.
type bench struct {
	t           *testing.T
	js          jetstream.JetStream
	retry, dead *testenv.Collector
	log         *testenv.Output
	stop        func() error // ends the worker and returns the result of Run
}

// newBench starts a worker whose command behaves by a mode.
func newBench(t *testing.T, mode string, concurrency int, timeout time.Duration) *bench {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	server := testenv.NATS(t)
	b := &bench{t: t, js: server.JetStream(), log: &testenv.Output{}}
	for name, subject := range map[string]string{
		"TIMERS":       keys.SubjectAll("timers", keys.Fired),
		"TIMERS_RETRY": keys.SubjectAll("timers", keys.Retry),
		"TIMERS_DEAD":  keys.SubjectAll("timers", keys.Dead),
	} {
		config := jetstream.StreamConfig{Name: name, Subjects: []string{subject}}
		if _, err := b.js.CreateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	}
	b.retry, b.dead = testenv.Collect(t, b.js, "TIMERS_RETRY"), testenv.Collect(t, b.js, "TIMERS_DEAD")
	c := client.NewConsumer(server.JetStream())
	c.StopTimeout, c.Concurrency, c.Logger = time.Second, concurrency, slog.New(slog.NewTextHandler(b.log, nil))
	if mode == "slow" {
		c.AckWait = time.Second
	}
	w := consume.Worker{
		Command: []string{"env", modeVariable + "=" + mode, self},
		Timeout: timeout, KillAfter: time.Second, Logger: c.Logger,
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx, c, "*") }()
	b.stop = func() error {
		cancel()
		select {
		case err := <-ended:
			ended <- err
			return err
		case <-time.After(patience):
			return errors.New("the worker does not end")
		}
	}
	t.Cleanup(func() {
		if err := b.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		if t.Failed() {
			t.Logf("log:\n%s", b.log)
		}
	})
	return b
}

// publish publishes the events of timers with a payload, as timerd does.
func (b *bench) publish(payload string, ids ...string) {
	b.t.Helper()
	for _, id := range ids {
		m := fired(keys.Key{App: "shop", Module: "order", Type: "timeout", ID: id}, []byte(payload))
		if _, err := b.js.PublishMsg(b.t.Context(), m); err != nil {
			b.t.Fatal(err)
		}
	}
}

// fired returns the message of a timer that has fired, as timerd publishes it.
func fired(k keys.Key, payload []byte) *nats.Msg {
	due := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	e := client.Event{
		ID: keys.EventID(k.String(), due.UnixMilli(), 1), Type: event.TypeFired, Key: k, Time: due, Due: due,
		Attempt:     1,
		MaxAttempts: 16, Trigger: "deadline", Data: payload,
	}
	m := nats.NewMsg(k.Subject("timers", keys.Fired))
	m.Data = e.AppendJSON(nil)
	m.Header.Set(event.MsgIDHeader, e.ID)
	return m
}

// settled waits until every event is acknowledged.
func (b *bench) settled() {
	b.t.Helper()
	testenv.Eventually(b.t, patience, func() error {
		stream, err := b.js.Stream(b.t.Context(), "TIMERS")
		if err != nil {
			return err
		}
		c, err := stream.Consumer(b.t.Context(), "timerd")
		if err != nil {
			return err
		}
		if info := c.CachedInfo(); info.AckFloor.Stream < stream.CachedInfo().State.LastSeq {
			return fmt.Errorf("acknowledged up to %d of %d", info.AckFloor.Stream, stream.CachedInfo().State.LastSeq)
		}
		return nil
	}, "every event acknowledged")
}

// some is true of one message or more.
func some(all []testenv.Message) error {
	if len(all) == 0 {
		return errors.New("no message")
	}
	return nil
}

// keysOf returns the ids of the timers of messages, sorted, each once.
func keysOf(t *testing.T, all []testenv.Message) string {
	t.Helper()
	var ids []string
	for _, m := range all {
		e, err := event.Parse(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, e.Key.ID)
	}
	slices.Sort(ids)
	return strings.Join(slices.Compact(ids), " ")
}

// Each answer has its own message, and its event is acknowledged. A faulty answer is a failed attempt.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, answer string
		retry        nats.Header // besides the id and the content type; nil if there is no retry request
		dead         string      // lasterror; "" if there is no dead letter
	}{
		{name: "done", answer: `{"id":"ID","result":"done"}`},
		{name: "without-id", answer: `{"result":"done"}`},
		{name: "retry", answer: `{"id":"ID","result":"retry","error":"503"}`,
			retry: nats.Header{"Timer-Error": {"503"}}},
		{
			name: "retry-later", answer: `{"result":"retry","error":"503","delay":"90s"}`,
			retry: nats.Header{"Timer-Error": {"503"}, "Timer-Delay": {"1m30s"}},
		},
		{
			name: "retry-bare", answer: `{"result":"retry"}`,
			retry: nats.Header{"Timer-Error": {"the command gave no error"}},
		},
		{
			name: "postpone", answer: `{"result":"postpone","delay":"10m","error":"closed"}`,
			retry: nats.Header{"Timer-Error": {"closed"}, "Timer-Delay": {"10m0s"}, "Timer-Postpone": {"1"}},
		},
		{
			name: "postpone-bare", answer: `{"result":"postpone"}`,
			retry: nats.Header{"Timer-Error": {"the command postponed the event without a delay, such as 30s"}},
		},
		{name: "dead", answer: `{"result":"dead","reason":"no such order"}`, dead: "no such order"},
		{name: "dead-bare", answer: `{"result":"dead"}`, dead: "the command gave no reason"},
		{
			name: "bad-delay", answer: `{"result":"retry","delay":"soon"}`,
			retry: nats.Header{"Timer-Error": {
				`the command's answer has the delay "soon", want a duration such as 30s or 1h30m`,
			}},
		},
		{
			name: "bad-result", answer: `{"result":"ok"}`,
			retry: nats.Header{"Timer-Error": {
				`the command's answer has the result "ok", want done, retry, postpone or dead`}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "good", 1, 0)
			b.publish(`{"answer":`+c.answer+`}`, "1")
			b.settled()
			switch {
			case c.retry != nil:
				header := b.retry.WaitFunc(patience, some)[0].Header
				for name, want := range c.retry {
					if got := header[name]; !slices.Equal(got, want) {
						t.Errorf("%s: %q, want %q", name, got, want)
					}
				}
			case c.dead != "":
				letter, err := event.Parse(b.dead.WaitFunc(patience, some)[0].Data)
				if err != nil || letter.LastError != c.dead {
					t.Errorf("dead letter: %q, %v; want %q", letter.LastError, err, c.dead)
				}
			}
			retried, dead := b.retry.Len() > 0, b.dead.Len() > 0
			if retried != (c.retry != nil) || dead != (c.dead != "") {
				t.Errorf("retried: %v, dead: %v", retried, dead)
			}
		})
	}
}

// An answer without an id is about the one event that the command has read, and about no event of several.
func TestAnswersWithoutID(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mode        string
		concurrency int
		retried     string // the events that are answered so, by their ids
	}{
		{"doubled", 1, "next"},
		{"early", 1, "bad next"},
		{"split", 1, "next"},
		{"crowded", 2, "bad next"},
	} {
		t.Run(c.mode, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, c.mode, c.concurrency, 0)
			b.publish(`{"answer":{"id":"ID","result":"retry","error":"not done"}}`, "bad", "next")
			b.settled()
			b.retry.WaitFunc(patience, func(all []testenv.Message) error {
				if got := keysOf(t, all); got != c.retried {
					return fmt.Errorf("retry requests of %q, want %q", got, c.retried)
				}
				return nil
			})
			b.log.Wait(t, patience, "is no answer")
		})
	}
}

// Whatever a command does with one event, no event is lost, and each acknowledged event was answered. An event that
// ends the command three times in a row becomes a retry request; its neighbours are done.
func TestBadCommands(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mode    string
		retried bool   // the bad event becomes a retry request
		logged  string // a part of the log
	}{
		{"exit", true, "exit status 3"},
		{"half", true, "the command ended"},
		{"forks", true, "exit status 4"},
		{"escapes", true, "exit status 4"},
		{"closes-output", true, "the command closed its output"},
		{"silent", true, "the command has not answered an event for"},
		{"chatty", false, "count=1000"},
		{"unknown", false, "nobody@1.1"},
		{"twice", false, "is no answer"},
		{"huge", false, "xxxx"},
		{"last-words", false, ""},
		{"slow", false, ""},
	} {
		t.Run(c.mode, func(t *testing.T) {
			t.Parallel()
			timeout := time.Duration(0)
			if c.mode == "silent" {
				timeout = 2 * time.Second
			}
			b := newBench(t, c.mode, 1, timeout)
			b.publish("{\n\"n\":\r1}", "a", "bad", "b", "c")
			if c.retried {
				got := b.retry.WaitFunc(patience, some)
				if id := keysOf(t, got); id != "bad" {
					t.Errorf("retry requests of %q, want bad", id)
				}
				why := got[0].Header.Get(event.ErrorHeader)
				if !strings.Contains(why, "3 times in a row") || !strings.Contains(why, c.logged) {
					t.Errorf("Timer-Error: %q, want the number of ends and %q", why, c.logged)
				}
			}
			b.settled()
			if err := b.stop(); err != nil {
				t.Errorf("Run: %v", err)
			}
			if !strings.Contains(b.log.String(), c.logged) {
				t.Errorf("the log does not say %q", c.logged)
			}
			// A request is published again if its acknowledgement is late, so only the timers count.
			if retried := b.retry.Len() > 0; retried != c.retried || b.dead.Len() != 0 {
				t.Errorf("retried: %v, want %v; %d dead letters, want none", retried, c.retried, b.dead.Len())
			}
		})
	}
}

// A command that reads nothing, or ignores SIGTERM, is ended nevertheless; its events are given back.
func TestStubbornCommandsEnd(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"unread", "stubborn"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, mode, 8, 0)
			b.publish(`"`+strings.Repeat("x", 100_000)+`"`, "1", "2", "3") // more than a pipe holds
			if mode == "stubborn" {
				b.publish(`{"answer":{"id":"ID","result":"done"}}`, "4")
			}
			testenv.Eventually(t, patience, func() error {
				c, err := b.js.Consumer(t.Context(), "TIMERS", "timerd")
				if err == nil && c.CachedInfo().NumAckPending == 0 && c.CachedInfo().NumPending > 0 {
					err = errors.New("no event is in hand")
				}
				return err
			}, "events in hand")
			if err := b.stop(); err != nil {
				t.Errorf("Run: %v", err)
			}
			if n := b.retry.Len() + b.dead.Len(); n != 0 {
				t.Errorf("%d retry requests and dead letters of events that the command never answered", n)
			}
		})
	}
}

// Many events in hand are answered in any order.
func TestConcurrency(t *testing.T) {
	t.Parallel()
	b := newBench(t, "good", 16, 0)
	var ids []string
	for i := range 500 {
		ids = append(ids, fmt.Sprint(i))
	}
	b.publish(`{}`, ids...)
	b.settled()
	if n := b.retry.Len() + b.dead.Len(); n != 0 {
		t.Errorf("%d retry requests and dead letters", n)
	}
}

// A command that cannot be started at all is an error at once.
func TestNoSuchCommand(t *testing.T) {
	t.Parallel()
	w := consume.Worker{Command: []string{"/no/such/command"}, Logger: slog.New(slog.DiscardHandler)}
	err := w.Run(t.Context(), client.NewConsumer(testenv.NATS(t).JetStream()), "*")
	if err == nil || !strings.Contains(err.Error(), "/no/such/command") {
		t.Errorf("Run: %v, want an error that names the command", err)
	}
}
