package system

import (
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/retry"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// Failed returns the event of a firing that a consumer could not handle.
func Failed(key string) event.Event {
	k, err := keys.Parse(key)
	if err != nil {
		panic(err)
	}
	due := time.Now().Truncate(time.Millisecond)
	return event.Event{
		ID: keys.EventID(key, due.UnixMilli(), 1), Type: event.TypeFired, Key: k, Time: due, Due: due,
		Attempt: 1, MaxAttempts: 16, Trigger: "deadline", Data: []byte("p"),
	}
}

// Ask asks for retries of many firings at once, by their keys.
func (s *System) Ask(all ...string) {
	s.T.Helper()
	var acks []jetstream.PubAckFuture
	for _, key := range all {
		e := Failed(key)
		ack, err := s.JS.PublishMsgAsync(&nats.Msg{Subject: e.Key.Subject("timers", keys.Retry),
			Data: e.AppendJSON(nil)}, jetstream.WithStallWait(Patience))
		if err != nil {
			s.T.Fatal(err)
		}
		acks = append(acks, ack)
	}
	for _, ack := range acks {
		select {
		case <-ack.Ok():
		case err := <-ack.Err():
			s.T.Fatal(err)
		case <-time.After(Patience):
			s.T.Fatal("a request is not stored")
		}
	}
}

// KeysOf returns n keys that differ at the end.
func KeysOf(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprint(prefix, i)
	}
	return all
}

// FireAll returns the firings of keys for s.expect.
func FireAll(all []string) []string {
	var want []string
	for _, key := range all {
		want = append(want, key+"=p")
	}
	return want
}

// Delivered waits until n requests have been delivered to a timerd and are not done.
func (s *System) Delivered(n int) {
	s.T.Helper()
	testenv.Eventually(s.T, Patience, func() error {
		consumer, err := s.JS.Consumer(s.T.Context(), "TIMERS_RETRY", retry.Durable)
		if err == nil && consumer.CachedInfo().NumAckPending < n {
			err = fmt.Errorf("%d are", consumer.CachedInfo().NumAckPending)
		}
		return err
	}, "requests to be delivered")
}

// LimitDead lets the stream of dead letters have n of them at most; -1 is no limit.
func (s *System) LimitDead(n int64) {
	s.T.Helper()
	dead, err := s.JS.Stream(s.T.Context(), "TIMERS_DEAD")
	if err != nil {
		s.T.Fatal(err)
	}
	config := dead.CachedInfo().Config
	config.MaxMsgs, config.Discard = n, jetstream.DiscardNew
	if _, err := s.JS.UpdateStream(s.T.Context(), config); err != nil {
		s.T.Fatal(err)
	}
}

// OthersGoOn asks, in a round from 0 on, for retries of n timers of an app of its own and waits until they have fired.
// It returns all firings by then: the earlier ones, want, and these. In the first round earlier requests come first, so
// they have to be on time only from the second on.
func (s *System) OthersGoOn(c *testenv.Collector, want []string, round, n int) []string {
	s.T.Helper()
	app := fmt.Sprint("good", round)
	group := KeysOf(app+":b:c:", n)
	watch := testenv.StartStopwatch()
	s.Ask(group...)
	want = append(want, FireAll(group)...)
	c.WaitFunc(5*Patience, AtLeast(len(want)))
	if all := s.Expect(c, want...); round > 0 {
		s.OnTime(watch, all, app)
	}
	return want
}

// Retry asks for a firing to be repeated, as any NATS client can, and returns between
// which instants the request was stored. Headers are name and value in turn.
func (s *System) Retry(m testenv.Message, headers ...string) (from, to time.Time) {
	s.T.Helper()
	msg := nats.NewMsg(strings.Replace(m.Subject, ".fired.", ".retry.", 1))
	msg.Data = m.Data
	for i := 0; i < len(headers); i += 2 {
		msg.Header.Set(headers[i], headers[i+1])
	}
	from = time.Now()
	if _, err := s.JS.PublishMsg(s.T.Context(), msg); err != nil {
		s.T.Fatal(err)
	}
	return from, time.Now()
}

// NoRequests waits until every retry request is carried out.
func (s *System) NoRequests() {
	s.T.Helper()
	testenv.Eventually(s.T, Patience, func() error {
		stream, err := s.JS.Stream(s.T.Context(), "TIMERS_RETRY")
		if err == nil && stream.CachedInfo().State.Msgs > 0 {
			err = fmt.Errorf("%d are left", stream.CachedInfo().State.Msgs)
		}
		return err
	}, "retry requests to be carried out")
}
