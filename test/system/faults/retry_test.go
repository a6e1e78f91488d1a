package faults_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/test/system"
)

func TestRetryAskedForAHundredTimes(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Env["TIMERD_RETRY"] = "*=3s"
	p := s.Start()
	c := s.Collect()
	s.Do("FCALL", "timer_set", 1, "app1:trans:notice:1", "x", "PX", 10)
	s.Events(c, 1)
	m := c.All()[0]
	var publishing sync.WaitGroup
	half := make(chan struct{})
	var once sync.Once
	for range 10 {
		js := s.NATS.JetStream()
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
	p.Kill()
	publishing.Wait()
	s.Start()
	s.NoRequests() // requests fetched by the killed one come again
	s.Expect(c, "app1:trans:notice:1=x", "app1:trans:notice:1=x")
	s.Settled()
	c.Stays(2, 200*time.Millisecond)
}

func TestRetriesGoOnThroughRestarts(t *testing.T) {
	t.Parallel()
	s := system.New(t, devserver.Directive("appendfsync", "always"))
	s.Env["TIMERD_RETRY"] = "*=700ms,700ms,700ms,700ms"
	p := s.Start()
	c := s.Collect()
	ctx, cancel := context.WithCancel(t.Context())
	consuming := make(chan error, 1)
	go func() {
		consuming <- client.NewConsumer(s.JS).Consume(ctx, "*",
			func(context.Context, client.Event) error { return errors.New("no answer") })
	}()
	var want []string
	for i := range 20 {
		key := fmt.Sprintf("app1:trans:notice:%d", i)
		s.Do("FCALL", "timer_set", 1, key, i, "PX", 100+10*i)
		for range 5 {
			want = append(want, fmt.Sprintf("%s=%d", key, i))
		}
	}
	s.After(s.Now() + 500)
	s.Redis.Kill()
	s.Redis.Start()
	p.AwaitReady(true)
	s.After(s.Now() + 300)
	s.NATS.Restart()
	p.AwaitReady(true)
	s.After(s.Now() + 300)
	s.Redis.Kill()
	s.Redis.Start()
	attempts := map[int]int{}
	for _, e := range s.Expect(c, want...) {
		attempts[e.Attempt]++
	}
	for attempt := 1; attempt <= 5; attempt++ {
		if attempts[attempt] != 20 {
			t.Errorf("attempts: %v, want 20 of each", attempts)
		}
	}
	for _, letter := range s.Letters(20) {
		if letter.LastError != "no answer" || letter.Attempt != 5 {
			t.Errorf("dead letter %+v", letter)
		}
	}
	s.Settled()
	cancel()
	if err := <-consuming; err != nil {
		t.Errorf("Consume: %v", err)
	}
	p.Stop()
}
