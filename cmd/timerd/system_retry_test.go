package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/redisserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// retry asks for a firing to be repeated, as any NATS client can, and returns between
// which instants the request was stored. Headers are name and value in turn.
func (s *system) retry(m testenv.Message, headers ...string) (from, to time.Time) {
	s.t.Helper()
	msg := nats.NewMsg(strings.Replace(m.Subject, ".fired.", ".retry.", 1))
	msg.Data = m.Data
	for i := 0; i < len(headers); i += 2 {
		msg.Header.Set(headers[i], headers[i+1])
	}
	from = time.Now()
	if _, err := s.js.PublishMsg(s.t.Context(), msg); err != nil {
		s.t.Fatal(err)
	}
	return from, time.Now()
}

// noRequests waits until every retry request is carried out.
func (s *system) noRequests() {
	s.t.Helper()
	testenv.Eventually(s.t, patience, func() error {
		stream, err := s.js.Stream(s.t.Context(), "TIMERS_RETRY")
		if err == nil && stream.CachedInfo().State.Msgs > 0 {
			err = fmt.Errorf("%d are left", stream.CachedInfo().State.Msgs)
		}
		return err
	}, "retry requests to be carried out")
}

// letters waits for exactly n dead letters.
func (s *system) letters(n int) []event.Event {
	s.t.Helper()
	var all []event.Event
	for _, m := range testenv.Collect(s.t, s.js, "TIMERS_DEAD").Wait(n, patience) {
		e, err := event.Parse(m.Data)
		if err != nil || e.Type != event.TypeDead || m.ID() != e.ID || m.Subject != e.Key.Subject("timers", keys.Dead) {
			s.t.Fatalf("dead letter %s on %s: %v", m.Data, m.Subject, err)
		}
		all = append(all, e)
	}
	return all
}

func TestRetriesFollowThePolicy(t *testing.T) {
	s := newSystem(t)
	s.env["TIMERD_RETRY"] = "app1:trans:notice=400ms,900ms,250ms"
	p := s.start()
	c := s.collect()
	delays := []time.Duration{400 * time.Millisecond, 900 * time.Millisecond, 250 * time.Millisecond}
	const key, payload = "app1:trans:notice:1", "{ \"order\":\t42 }"

	for round := range 2 {
		if round == 0 {
			s.do("FCALL", "timer_set", 1, key, payload, "PX", 100)
		} else {
			id := s.letters(1)[0].ID
			testenv.SetVariables(t, s.env)
			if out := ok(t, "dead", "replay", "--id", id, "--yes"); !strings.HasSuffix(out, "\n1 replayed, 0 skipped\n") {
				t.Fatalf("dead replay: %s", out)
			}
		}
		var from, to time.Time
		for i := range len(delays) + 1 {
			all := s.events(c, round*(len(delays)+1)+i+1)
			e := all[len(all)-1]
			if e.Attempt != i+1 || e.MaxAttempts != 4 || string(e.Data) != payload {
				t.Errorf("event %+v, want attempt %d of 4", e, i+1)
			}
			if i > 0 {
				if due := e.Due.Add(-delays[i-1]); due.Before(from.Truncate(time.Millisecond)) || due.After(to.Add(time.Millisecond)) {
					t.Errorf("attempt %d is due %s after the request, want %s", i+1, e.Due.Sub(from), delays[i-1])
				}
				t.Logf("attempt %d: %s late", i+1, e.Time.Sub(e.Due))
			}
			from, to = s.retry(c.All()[c.Len()-1], "Timer-Error", fmt.Sprintf("failure %d", i+1))
		}
		letter := s.letters(1)[0]
		if letter.Key.String() != key || letter.Attempt != 4 || letter.MaxAttempts != 4 || letter.DeadReason != event.ReasonExhausted ||
			letter.LastError != "failure 4" || string(letter.Data) != payload {
			t.Errorf("dead letter %+v", letter)
		}
	}
	s.noRequests()
	s.settled()
	c.Stays(8, 100*time.Millisecond)
	_, metrics, err := p.get("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"timerd_retries_total 6\n", `timerd_dead_letters_total{reason="exhausted"} 2` + "\n"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %q", want)
		}
	}
	p.stop()
}

func TestRetryAskedForAHundredTimes(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.env["TIMERD_RETRY"] = "*=3s"
	p := s.start()
	c := s.collect()
	s.do("FCALL", "timer_set", 1, "app1:trans:notice:1", "x", "PX", 10)
	s.events(c, 1)
	m := c.All()[0]
	var publishing sync.WaitGroup
	half := make(chan struct{})
	var once sync.Once
	for range 10 {
		js := s.nats.JetStream()
		publishing.Go(func() {
			for i := range 10 {
				if i == 5 {
					once.Do(func() { close(half) })
				}
				if _, err := js.Publish(t.Context(), "timers.retry.app1.trans.notice", m.Data); err != nil {
					t.Error(err)
				}
			}
		})
	}
	<-half
	p.kill()
	publishing.Wait()
	s.start()
	s.noRequests() // those that the killed one had fetched come again
	s.expect(c, "app1:trans:notice:1=x", "app1:trans:notice:1=x")
	s.settled()
	c.Stays(2, 200*time.Millisecond)
}

func TestRetriesGoOnThroughRestarts(t *testing.T) {
	t.Parallel()
	s := newSystem(t, redisserver.Directive("appendfsync", "always"))
	s.env["TIMERD_RETRY"] = "*=700ms,700ms,700ms,700ms"
	p := s.start()
	c := s.collect()
	ctx, cancel := context.WithCancel(t.Context())
	consuming := make(chan error, 1)
	go func() {
		consuming <- client.NewConsumer(s.js).Consume(ctx, "*", func(context.Context, client.Event) error { return errors.New("no answer") })
	}()
	var want []string
	for i := range 20 {
		key := fmt.Sprintf("app1:trans:notice:%d", i)
		s.do("FCALL", "timer_set", 1, key, i, "PX", 100+10*i)
		for range 5 {
			want = append(want, fmt.Sprintf("%s=%d", key, i))
		}
	}
	s.after(s.now() + 500)
	s.redis.Kill()
	s.redis.Start()
	p.awaitReady(true)
	s.after(s.now() + 300)
	s.nats.Restart()
	p.awaitReady(true)
	s.after(s.now() + 300)
	s.redis.Kill()
	s.redis.Start()
	attempts := map[int]int{}
	for _, e := range s.expect(c, want...) {
		attempts[e.Attempt]++
	}
	for attempt := 1; attempt <= 5; attempt++ {
		if attempts[attempt] != 20 {
			t.Errorf("attempts: %v, want 20 of each", attempts)
		}
	}
	for _, letter := range s.letters(20) {
		if letter.LastError != "no answer" || letter.Attempt != 5 {
			t.Errorf("dead letter %+v", letter)
		}
	}
	s.settled()
	cancel()
	if err := <-consuming; err != nil {
		t.Errorf("Consume: %v", err)
	}
	p.stop()
}

func TestRetriesBesideNewerTimersAndCancelled(t *testing.T) {
	t.Parallel()
	for _, events := range []string{"on", "off"} {
		t.Run("events "+events, func(t *testing.T) {
			s := newSystem(t)
			s.env["TIMERD_RETRY"], s.env["TIMERD_KEYSPACE_EVENTS"] = "*=1s", events
			s.start()
			c := s.collect()
			set := []string{"beside", "cancelled"}
			if events == "on" { // or the deletion is found only by an audit
				set = append(set, "deleted")
			}
			want := []string{"app1:trans:notice:beside=old", "app1:trans:notice:beside=newer"}
			for _, id := range set {
				s.do("FCALL", "timer_set", 1, "app1:trans:notice:"+id, "old", "PX", 50)
				want = append(want, "app1:trans:notice:"+id+"=old")
			}
			s.events(c, len(set))
			s.do("FCALL", "timer_set", 1, "app1:trans:notice:beside", "newer", "PX", 1200)
			for _, m := range c.All() {
				s.retry(m)
			}
			s.noRequests()
			if got := s.do("FCALL", "timer_cancel", 1, "app1:trans:notice:cancelled"); got != "cancelled" {
				t.Errorf("timer_cancel: %v", got)
			}
			if got := s.do("DEL", "app1:trans:notice:deleted"); got != int64(len(set)-2) {
				t.Errorf("DEL: %v", got)
			}
			s.expect(c, want...)
			s.settled()
		})
	}
}

func TestMalformedRetryRequestsOfTheWholeSystem(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start()
	c := s.collect()
	s.do("SET", "app1:trans:notice:1", "\xff\x00", "PX", 200)
	s.events(c, 1)
	s.retry(c.All()[0], "Timer-Delay", "tomorrow")
	if _, err := s.js.Publish(t.Context(), "timers.retry.app1.trans.notice", []byte("again, please")); err != nil {
		t.Fatal(err)
	}
	letters := s.letters(2)
	reasons := letters[0].DeadReason + "\n" + letters[1].DeadReason
	contents := string(letters[0].Data) + "\n" + string(letters[1].Data)
	for _, want := range []string{`Timer-Delay "tomorrow"`, "not a JSON object"} {
		if !strings.Contains(reasons, want) {
			t.Errorf("reasons %q lack %q", reasons, want)
		}
	}
	for _, want := range []string{"\xff\x00", "again, please"} {
		if !strings.Contains(contents, want) {
			t.Errorf("contents %q lack %q", contents, want)
		}
	}
	s.noRequests()
	s.settled()
	p.stop()
}
