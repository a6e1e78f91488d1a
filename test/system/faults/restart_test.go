package faults_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/service"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/test/system"
)

// TestStartedAndStoppedAHundredTimes runs the service in this process, so that leftovers of one run show.
func TestStartedAndStoppedAHundredTimes(t *testing.T) {
	s := system.New(t)
	for name, value := range maps.All(s.Env) {
		t.Setenv(name, value)
	}
	t.Setenv("TIMERD_HTTP_ADDR", "127.0.0.1:0")
	c, err := config.Read(config.SectionRedis | config.SectionNATS | config.SectionService)
	if err != nil {
		t.Fatal(err)
	}
	s.Start().Stop() // makes the streams
	fired := s.Collect()
	testenv.NoLeaks(t)

	const times = 100
	var want []string
	for i := range times {
		key := fmt.Sprintf("a:b:c:%d", i)
		s.Do("FCALL", "timer_set", 1, key, i, "PX", 5)
		want = append(want, fmt.Sprintf("%s=%d", key, i))
		ctx, stop := context.WithCancel(t.Context())
		var log testenv.Output
		done := make(chan error, 1)
		go func() { done <- service.Service{Config: c, Logger: log.Logger()}.Run(ctx) }()
		// Some runs are stopped right at the start, others after they have fired.
		if i%3 > 0 {
			log.Wait(t, system.Patience, "timerd is running")
		}
		if i%3 > 1 {
			fired.WaitFunc(system.Patience, system.AtLeast(i+1))
		}
		stop()
		select {
		case err := <-done:
			if err != nil && (i%3 > 0 || !errors.Is(err, context.Canceled)) {
				t.Fatalf("run %d: %v\n%s", i, err, &log)
			}
		case <-time.After(system.Patience):
			t.Fatalf("run %d does not stop:\n%s", i, &log)
		}
	}
	s.Start()
	s.Expect(fired, want...)
	s.Settled()
}

// A rolling restart under load: each of three timerds in turn, while 2,000 timers a
// second are due.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	daemons := []*system.Daemon{s.Start(), s.Start(), s.Start()}
	c := s.Collect()
	const n = 20_000
	want := s.Load("rolling", n, n/2000*time.Second)
	for i, p := range daemons {
		c.WaitFunc(system.Patience, system.AtLeast((i+1)*n/5))
		p.Stop()
		daemons[i] = s.Start()
	}
	var lateness []time.Duration
	for _, e := range s.Expect(c, want...) {
		lateness = append(lateness, e.Time.Sub(e.Due))
	}
	c.Stays(n, time.Second)
	s.Settled()
	t.Log(percentiles(lateness))
	for _, p := range daemons {
		p.Stop()
	}
}
