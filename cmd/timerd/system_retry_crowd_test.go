package main

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/retry"
)

// failed returns the event of a firing that a consumer could not handle.
func failed(key string) event.Event {
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

// ask asks for retries of many firings at once, by their keys.
func (s *system) ask(all ...string) {
	s.t.Helper()
	var acks []jetstream.PubAckFuture
	for _, key := range all {
		e := failed(key)
		ack, err := s.js.PublishMsgAsync(&nats.Msg{Subject: e.Key.Subject("timers", keys.Retry), Data: e.AppendJSON(nil)}, jetstream.WithStallWait(patience))
		if err != nil {
			s.t.Fatal(err)
		}
		acks = append(acks, ack)
	}
	for _, ack := range acks {
		select {
		case <-ack.Ok():
		case err := <-ack.Err():
			s.t.Fatal(err)
		case <-time.After(patience):
			s.t.Fatal("a request is not stored")
		}
	}
}

// keysOf returns n keys that differ at the end.
func keysOf(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprint(prefix, i)
	}
	return all
}

// fireAll returns what s.expect is to see of keys.
func fireAll(all []string) []string {
	var want []string
	for _, key := range all {
		want = append(want, key+"=p")
	}
	return want
}

// delivered waits until n requests have been delivered to a timerd and are not done.
func (s *system) delivered(n int) {
	s.t.Helper()
	testenv.Eventually(s.t, patience, func() error {
		consumer, err := s.js.Consumer(s.t.Context(), "TIMERS_RETRY", retry.Durable)
		if err == nil && consumer.CachedInfo().NumAckPending < n {
			err = fmt.Errorf("%d are", consumer.CachedInfo().NumAckPending)
		}
		return err
	}, "requests to be delivered")
}

// limitDead lets the stream of dead letters have n of them at most; -1 is no limit.
func (s *system) limitDead(n int64) {
	s.t.Helper()
	dead, err := s.js.Stream(s.t.Context(), "TIMERS_DEAD")
	if err != nil {
		s.t.Fatal(err)
	}
	config := dead.CachedInfo().Config
	config.MaxMsgs, config.Discard = n, jetstream.DiscardNew
	if _, err := s.js.UpdateStream(s.t.Context(), config); err != nil {
		s.t.Fatal(err)
	}
}

// othersGoOn asks, in a round from 0 on, for retries of n timers of an app of its own and waits until they have fired. It
// returns all that has fired by then: what had before, want, and these. In the first round they come after all that was
// asked for before them, so it is from the second on that they have to be on time.
func (s *system) othersGoOn(c *testenv.Collector, want []string, round, n int) []string {
	s.t.Helper()
	app := fmt.Sprint("good", round)
	group := keysOf(app+":b:c:", n)
	s.ask(group...)
	want = append(want, fireAll(group)...)
	if all := s.expect(c, want...); round > 0 {
		s.onTime(all, app)
	}
	return want
}

// Requests that cannot become dead letters, because the stream of these is full, hold up no retry of others. Once there
// is room, each becomes a letter, once.
func TestRetriesWhileDeadLettersAreFull(t *testing.T) {
	t.Parallel()
	const bad, good = 5000, 300
	s := newSystem(t)
	s.env["TIMERD_RETRY"] = "bad=exp(1s,1,1s,0); *=200ms"
	p := s.start()
	c := s.collect()
	s.ask("bad:b:c:first")
	s.letters(1)
	s.limitDead(1)
	s.ask(keysOf("bad:b:c:", bad)...)
	var want []string
	for i := range 3 { // while they come for the first time, and while they come back
		want = s.othersGoOn(c, want, i, good/3)
		s.delivered(bad)
		s.after(s.now() + 1000)
	}
	if _, body, err := p.get("/metrics"); err != nil || strings.Contains(body, `timerd_set_aside_total{reason="retry"} 0`) {
		t.Errorf("nothing was counted as set aside: %v", err)
	}
	s.limitDead(-1)
	began := time.Now()
	ids := map[string]bool{}
	for _, letter := range s.letters(bad + 1) {
		ids[letter.ID] = true
	}
	t.Logf("all dead letters %v after there was room", time.Since(began))
	if len(ids) != bad+1 {
		t.Errorf("letters of %d events, want %d", len(ids), bad+1)
	}
	s.noRequests()
	p.awaitReady(true)
	s.letters(bad + 1)
	p.stop()
}

// Requests for a slot of a cluster that is on the move wait, however many they are; those for other slots are carried
// out. After the move each one's timer fires, once.
func TestRetriesWhileASlotMoves(t *testing.T) {
	t.Parallel()
	const bad, good = 3000, 200
	s := newClusterSystem(t, false)
	s.env["TIMERD_RETRY"] = "*=200ms"
	p := s.start()
	c := s.collect()
	slot := keys.Slot("bad:{x}:c:1")
	from := s.cluster.Master(slot)
	to := s.cluster.Nodes[0]
	if to == from {
		to = s.cluster.Nodes[1]
	}
	s.cluster.OpenSlot(slot, from, to)
	waiting := keysOf("bad:{x}:c:", bad)
	s.ask(waiting...)
	var want []string
	for i := range 2 {
		want = s.othersGoOn(c, want, i, good/2)
		s.delivered(bad)
	}
	p.awaitReady(true)
	s.cluster.CloseSlot(slot, from, to)
	began := time.Now()
	s.expect(c, slices.Concat(want, fireAll(waiting))...)
	t.Logf("all have fired %v after the move", time.Since(began))
	s.noRequests()
	s.emptied()
	p.stop()
}

// What a timerd has fetched that is killed then is carried out by another one soon.
func TestRetriesOfAKilledTimerd(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.env["TIMERD_RETRY"] = "*=1ms"
	dying := s.start()
	c := s.collect()
	dying.signal(syscall.SIGSTOP)
	all := keysOf("good:b:c:", 10)
	s.ask(all...)
	s.delivered(len(all))
	other := s.launch()
	dying.kill()
	other.awaitReady(true)
	for _, e := range s.expect(c, fireAll(all)...) {
		if late := e.Time.Sub(e.Due); late > 6*time.Second {
			t.Errorf("%s was carried out %v after it was asked for", e.Key, late)
		}
	}
	s.noRequests()
	s.settled()
	other.stop()
}
